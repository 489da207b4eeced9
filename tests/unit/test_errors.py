"""How a process ends."""

import os
import subprocess
import sys

ENDLESS = """
from neox_core.errors import run_main
def main():
    while True:
        print("line")
run_main(main)
"""

MISTAKEN = """
from neox_core.errors import DataError, run_main
def main():
    print("line")
    raise DataError("mistake")
run_main(main)
"""


def test_a_reader_that_has_enough_is_no_error() -> None:
    command = [sys.executable, "-c", ENDLESS]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(30) == 141


def test_what_is_left_to_write_beside_a_mistake_is_no_error_either() -> None:
    read, written = os.pipe()
    os.close(read)
    command, env = [sys.executable, "-c", MISTAKEN], os.environ | {"PYTHONUNBUFFERED": ""}
    done = subprocess.run(command, stdout=written, stderr=subprocess.PIPE, text=True, env=env, check=False)
    os.close(written)
    assert (done.stderr, done.returncode) == ("error: mistake\n", 141)

"""How a process ends."""

import subprocess
import sys

ENDLESS = """
from neox_core.errors import run_main
def main():
    while True:
        print("line")
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

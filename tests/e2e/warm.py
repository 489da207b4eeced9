"""Runs scripts of this folder in forks of one process, which has imported what they would each import for ten seconds.

It reads jobs from its standard input, a line of JSON each, and answers on its standard output with two lines: the id of
the process, which leads a group of its own, and the code with which it ended.
"""

import json
import os
import runpy
import sys
from functools import partial
from pathlib import Path
from typing import Any

from forks import forked
from layouts import warm_up


def run_script(job: dict[str, Any]) -> None:
    os.setsid()
    said = os.open(job["said"], os.O_WRONLY | os.O_APPEND)
    os.dup2(said, 2)
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.clear()
    os.environ |= job["env"]
    os.chdir(job["folder"])
    sys.argv = job["argv"]
    runpy.run_path(job["argv"][0], run_name="__main__")


def main() -> None:
    warm_up()
    for line in sys.stdin:
        child = forked(partial(run_script, json.loads(line)))
        os.write(1, f"{child}\n".encode())
        os.write(1, f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n".encode())
    os._exit(0)  # without what libraries say of themselves when they are torn down


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent)
    main()

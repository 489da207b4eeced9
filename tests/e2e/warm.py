"""Runs scripts of this folder in forks of one process, which has imported what they would each import for ten seconds.

It reads jobs from its standard input, a line of JSON each, and answers on its standard output with two lines: the id of
the process, which leads a group of its own, and the code with which it ended.
"""

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

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
        child = os.fork()
        if not child:
            code = 1
            try:
                run_script(json.loads(line))
                code = 0
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else bool(error.code)
                os.write(2, f"{error.code}\n".encode() if isinstance(error.code, str) else b"")
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    os._exit(0)  # without what libraries say of themselves when they are torn down


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent)
    main()

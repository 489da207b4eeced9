"""Run two commands at once: `at_once.py COMMAND -- COMMAND`. Each shows what it said in one piece; both must succeed.

For tests that compute, and beside them, in the second, those with deadlines, which mostly wait and come first where
processors are short.
"""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from plugins_from_wheels import run


def failed(argv: list[str], behind: bool) -> int:
    try:
        run(*argv, behind=behind)
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    at = sys.argv.index("--")
    with ThreadPoolExecutor(2) as pool:
        sys.exit(max(pool.map(failed, (sys.argv[1:at], sys.argv[at + 1 :]), (True, False))))

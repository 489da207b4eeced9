"""Run two commands of pytest at once: `at_once.py COMMAND -- COMMAND`. Each shows what it said in one piece.

For tests that compute, and beside them, in the second, those with deadlines, which mostly wait and come first where
processors are short. What fails is tried once more at the end by itself, and must pass then.
"""

import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from plugins_from_wheels import remembering, run


def failed(argv: list[str], behind: bool = False) -> int:
    try:
        run(*argv, behind=behind)
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


def main(both: list[list[str]]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        commands = [[*argv, *remembering(Path(folder) / str(index))] for index, argv in enumerate(both)]
        with ThreadPoolExecutor(2) as pool:
            codes = list(pool.map(failed, commands, (True, False)))
        return max(
            (failed([*argv, "--last-failed"]) for argv, code in zip(commands, codes, strict=True) if code), default=0
        )


if __name__ == "__main__":
    at = sys.argv.index("--")
    sys.exit(main([sys.argv[1:at], sys.argv[at + 1 :]]))

"""`python -m neox_author.try_imports`: imports targets one by one, so that a crash ends this process only.

Reads a JSON list of [path, light] from stdin; for each writes a JSON line [path, error or ""] to stdout as soon as it
is known. What the imported modules print goes to stderr. While a `light` target is imported, heavy libraries are
refused. A target that takes longer than the limit, an argument in seconds, ends the process.
"""

import faulthandler
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

from neox_core.errors import NeoxError, PluginError
from neox_core.hooks.component import load_path
from neox_core.hooks.guard import no_heavy_imports
from neox_core.interpreter import python

IMPORT_S = 120.0
"""Importing torch takes seconds, or a minute from a cold disk."""


def import_errors(targets: Sequence[tuple[str, bool]], seconds: float = IMPORT_S) -> dict[str, str]:
    """Import every (path, light) in other processes: path -> what went wrong, "" when nothing did.

    Light targets come first, before any heavy library is imported. A target that ends its process, or takes longer than
    `seconds`, is at fault; a new process imports the rest.
    """
    left = sorted(dict(targets).items(), key=lambda target: (not target[1], target[0]))
    errors: dict[str, str] = {}
    while left:
        done = subprocess.run(
            python(__name__, str(seconds)),
            input=json.dumps(left),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        said = done.stderr.strip().splitlines()
        ready, *results = [json.loads(line) for line in done.stdout.splitlines()] or [False]
        if not ready:
            raise PluginError(f"cannot start the process that imports what plugins offer: {' '.join(said[-1:])}")
        errors.update((path, error) for path, error in results)
        left = left[len(results) :]
        if left:
            errors[left.pop(0)[0]] = _fault(done.returncode, said, seconds)
    return errors


def _fault(code: int, said: list[str], seconds: float) -> str:
    if any(line.startswith("Timeout (") for line in said):  # of faulthandler, with the positions after it
        place = next((line.strip() for line in said if line.startswith("  File ")), "")
        return f"takes longer than {seconds:g} s to import: {place}"
    ended = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"ends the process that imports it ({ended}){': ' + said[-1] if said else ''}"


def _attempts(targets: Sequence[tuple[str, bool]], seconds: float) -> Iterator[tuple[str, str]]:
    for path, light in targets:
        faulthandler.dump_traceback_later(seconds, exit=True)
        try:
            with no_heavy_imports(path) if light else nullcontext():
                load_path(path)
        except NeoxError as error:
            yield path, " ".join(error.message.split())
        else:
            yield path, ""


def main() -> None:
    targets = json.loads(sys.stdin.read())
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    results.write("true\n")  # this process has started
    results.flush()
    for path, error in _attempts(targets, float(sys.argv[1])):
        results.write(json.dumps([path, error]) + "\n")
        results.flush()
    os._exit(0)  # with any threads that the targets left


if __name__ == "__main__":
    main()

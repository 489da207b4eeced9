"""`python -m neox_core.cli.try_imports`: imports targets one by one, so that one that kills the process kills this one.

Reads a JSON list of [path, light] from stdin; for each writes a JSON line [path, error or ""] to stdout as soon as it
is known. What the imported modules print goes to stderr. `light` targets are imported with heavy libraries refused.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

from neox_core.errors import NeoxError
from neox_core.hooks.component import load_path
from neox_core.hooks.guard import no_heavy_imports
from neox_core.interpreter import python


def import_errors(targets: Sequence[tuple[str, bool]]) -> dict[str, str]:
    """Import every (path, light) in other processes: path -> what went wrong, "" when nothing did.

    Light ones come first, while no heavy library is there. A target that ends its process is at fault, and the rest
    goes on in a new one.
    """
    left = sorted(dict(targets).items(), key=lambda target: (not target[1], target[0]))
    errors: dict[str, str] = {}
    while left:
        done = subprocess.run(python(__name__), input=json.dumps(left), capture_output=True, text=True, check=False)
        results = [json.loads(line) for line in done.stdout.splitlines()]
        errors.update((path, error) for path, error in results)
        left = left[len(results) :]
        if left:
            lines = done.stderr.strip().splitlines()
            ended = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
            errors[left.pop(0)[0]] = f"ends the process that imports it ({ended}){': ' + lines[-1] if lines else ''}"
    return errors


def _attempts(targets: Sequence[tuple[str, bool]]) -> Iterator[tuple[str, str]]:
    for path, light in targets:
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
    for path, error in _attempts(targets):
        results.write(json.dumps([path, error]) + "\n")
        results.flush()


if __name__ == "__main__":
    main()

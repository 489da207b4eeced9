"""`python -m neox_author.try_imports`: imports targets one by one, so that a crash ends this process only.

While a `light` target is imported, heavy libraries are refused.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from neox_author.apart import Tell, serve, try_apart
from neox_core.errors import NeoxError
from neox_core.hooks.component import load_path
from neox_core.hooks.guard import no_heavy_imports

IMPORT_S = 120.0
"""Importing torch takes seconds, or a minute from a cold disk."""


def import_errors(targets: Sequence[tuple[str, bool]], seconds: float = IMPORT_S) -> dict[str, str]:
    """Import every (path, light) in other processes: path -> what went wrong, "" when nothing did.

    Light targets come first, before any heavy library is imported. A target that ends its process, or takes longer than
    `seconds`, is at fault; a new process imports the rest.
    """
    ordered = sorted(dict(targets).items(), key=lambda target: (not target[1], target[0]))
    outcomes = try_apart(__name__, ordered, seconds, "import")
    return {path: outcome.fault for (path, _), outcome in zip(ordered, outcomes, strict=True)}


def _import(target: Any, tell: Tell) -> str:
    path, light = target
    try:
        with no_heavy_imports(path) if light else nullcontext():
            load_path(path)
    except NeoxError as error:
        return " ".join(error.message.split())
    return ""


def main() -> None:
    """Import what the parent process asks for, until it ends."""
    serve(_import)


if __name__ == "__main__":
    main()

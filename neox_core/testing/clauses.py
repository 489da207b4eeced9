"""What the checks have in common: how one says which clause does not hold, and whether something is light."""

import subprocess
import sys

from neox_core.hooks.guard import HEAVY


def hold(holds: object, clause: str) -> None:
    """Raises AssertionError with the clause, unless it holds."""
    if not holds:
        raise AssertionError(clause)


def heavy_imports(statements: str, argument: str) -> str:
    """The heavy libraries that `statements`, which see `argument` as sys.argv[1], import, or why they fail; "": none.

    Tried in a fresh process, since this one may have torch already.
    """
    code = f"import sys; {statements}; sys.exit(' '.join(sorted(set(sys.argv[2:]) & set(sys.modules))) or 0)"
    command = [sys.executable, "-c", code, argument, *sorted(HEAVY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


def check_light(target: str) -> None:
    """The clause of every kind whose target is imported on the host too."""
    module = target.partition(":")[0]
    if module in sys.modules and getattr(sys.modules[module], "__file__", None) is None:
        return  # made by a test: no other process can import it
    heavy = heavy_imports("from importlib import import_module; import_module(sys.argv[1])", module)
    hold(not heavy, f"{module} is imported on the host too and must be light; it imports {heavy}")

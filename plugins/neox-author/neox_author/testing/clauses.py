"""What the checks share: naming the clause that fails or does not apply, and finding heavy imports."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from traceback import walk_tb
from typing import Any, TypeVar, cast

from neox_core.errors import ConfigError, PluginError
from neox_core.hooks.guard import HEAVY

F = TypeVar("F", bound=Callable[..., Any])
Hear = Callable[[str, str], object]
"""Is told of each clause that holds, and why one does not apply, "" where it does."""
_HEARS: ContextVar[Hear] = ContextVar("hears", default=lambda clause, why_not: None)

OURS = {"neox_author", "neox_core", "torch", "numpy", *sys.stdlib_module_names}


def clauses(check: F) -> F:
    """Mark a function as a check: an exception of the component becomes a failed clause, with the place in its code.

    A plugin that cannot be loaded, and wrong settings, still raise their own errors.
    """

    @wraps(check)
    def checked(*args: Any, **settings: Any) -> Any:
        try:
            return check(*args, **settings)
        except (AssertionError, PluginError, ConfigError):
            raise
        except Exception as error:
            raise AssertionError(
                f"what the contract allows raises nothing; {raised(error, check.__module__)}"
            ) from error

    return cast("F", checked)


def raised(error: BaseException, check: str) -> str:
    """The exception in one line, and the last place in the component's own code that it passed."""
    frames = ((frame.f_globals.get("__name__", ""), line) for frame, line in walk_tb(error.__traceback__))
    places = [f"{name}, line {line}" for name, line in frames if name != check and name.partition(".")[0] not in OURS]
    said = " ".join(f"{type(error).__name__}: {error}".split())
    return f"it raises {said}" + (f" ({places[-1]})" if places and places[-1] else "")


def has(component: object, what: str, *methods: str) -> None:
    """Raise AssertionError unless the component has every method that its contract names."""
    lacks = [name for name in methods if not callable(getattr(component, name, None))]
    hold(not lacks, f"{what} has the methods {', '.join(methods)}; it has no {', '.join(lacks)}")


def hold(holds: object, clause: str) -> None:
    """Raise AssertionError with the clause, unless it holds."""
    if not holds:
        raise AssertionError(clause)
    _HEARS.get()(clause, "")


def hold_raises(kind: type[Exception], call: Callable[[], object], clause: str) -> None:
    """Raise AssertionError with the clause, unless the call raises this kind of error."""
    try:
        call()
    except kind:
        hold(True, clause)
    else:
        hold(False, clause)


def not_applicable(clause: str, why: str) -> None:
    """Say that a check leaves a clause out.

    why: what the component declares, or does not have
    """
    _HEARS.get()(clause, why)


@contextmanager
def heard(hear: Hear) -> Iterator[None]:
    """Tell `hear` of the clauses that hold, or do not apply, while the block runs checks."""
    token = _HEARS.set(hear)
    try:
        yield
    finally:
        _HEARS.reset(token)


def heavy_imports(statements: str, argument: str) -> str:
    """The heavy libraries that some statements import, or the error with which they fail; "" if neither.

    They run in a fresh process, since this one may have imported torch.

    statements: Python
    argument: what they see as sys.argv[1]
    """
    code = f"import sys; {statements}; sys.exit(' '.join(sorted(set(sys.argv[2:]) & set(sys.modules))) or 0)"
    command = [sys.executable, "-c", code, argument, *sorted(HEAVY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


def check_light(target: str) -> None:
    """Check the clause of kinds whose target the host imports as well: it imports no heavy library."""
    module = target.partition(":")[0]
    if module in sys.modules and getattr(sys.modules[module], "__file__", None) is None:
        return  # made by a test: no other process can import it
    heavy = heavy_imports("from importlib import import_module; import_module(sys.argv[1])", module)
    hold(not heavy, f"{module} is imported on the host too and must be light; it imports {heavy}")


def is_word(name: object) -> bool:
    """Whether a number of the log may have this name."""
    return isinstance(name, str) and bool(re.fullmatch(r"[\w.-]{1,300}", name))

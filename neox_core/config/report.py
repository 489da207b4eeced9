"""Problems as text, and the error that carries all of them at once."""

import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from attrs import evolve

from neox_core.config.problem import COMMAND_LINE, Problem
from neox_core.errors import ConfigError
from neox_core.terminal import Own, cut, one_line, wants_colour

_COLOURS = {"error": "\x1b[31m", "warning": "\x1b[33m", "note": "\x1b[36m"}
MAX_KEY = 200
MAX_TEXT = 1000
MAX_LINES = 200  # a report is for reading; `--json` has every problem
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


class ProblemsError(ConfigError):
    """A config with problems; `problems` holds them in the order of the report.

    The exit code is that of all errors where they have the same one, else a config's.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = in_order(problems)
        super().__init__(_summary(self.problems) + "\n" + render(self.problems[:MAX_LINES]) + self._rest())
        codes = {problem.exit_code for problem in errors(self.problems)}
        self.exit_code = codes.pop() if len(codes) == 1 else ConfigError.exit_code

    def shown(self) -> str:
        lines = render(self.problems[:MAX_LINES], colour=wants_colour(sys.stderr))
        return Own(f"{_summary(self.problems)}\n{lines}{self._rest()}")

    def _rest(self) -> str:
        more = len(self.problems) - MAX_LINES
        return f"\n... and {more} more" if more > 0 else ""


def errors(problems: Iterable[Problem]) -> list[Problem]:
    """The problems that stop a run."""
    return [problem for problem in problems if problem.severity == "error"]


def _summary(problems: Sequence[Problem]) -> str:
    count = len(errors(problems))
    return f"the configuration has {count} error{'s' if count != 1 else ''}:"


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """By file, line and column, each problem once; those without a place come last."""
    return tuple(sorted(dict.fromkeys(problems), key=lambda problem: _position(problem.where)))


def render(problems: Iterable[Problem], *, colour: bool = False) -> Own:
    """One line each: `file:line:column: error: key: message (hint)`."""
    return Own("\n".join(_line(problem, colour) for problem in problems))


def as_list(problems: Iterable[Problem]) -> list[dict[str, Any]]:
    """Problems for editors: file, line, column (from 1; null when unknown), key, value, message, hint, severity."""
    return [_entry(problem) for problem in in_order(problems)]


def _entry(problem: Problem) -> dict[str, Any]:
    problem = _short(problem)
    _, file, line, column = _position(problem.where)
    return {
        "file": None if file in ("", COMMAND_LINE) else file,
        "line": line or None,
        "column": column or None,
        "key": problem.key,
        "value": problem.value,
        "message": problem.message,
        "hint": problem.hint,
        "severity": problem.severity,
    }


def spell(path: str) -> str:
    """A dotted path as messages write it: top-level keys with hyphens, blocks as the engine spells them."""
    head, dot, rest = path.partition(".")
    return head.replace("_", "-") if not dot else f"{head}.{rest}"


def _line(problem: Problem, colour: bool) -> str:
    problem = _short(problem)
    severity, where = problem.severity, one_line(problem.where)
    if colour:
        severity = f"{_COLOURS.get(severity, '')}{severity}{_PLAIN}"
        where = f"{_BOLD}{where}{_PLAIN}" if where else ""
    parts = [part for part in (where, severity, one_line(problem.key), one_line(problem.message)) if part]
    return ": ".join(parts) + (f" ({one_line(problem.hint)})" if problem.hint else "")


def _short(problem: Problem) -> Problem:
    """What a config holds can be of any length."""
    return evolve(
        problem,
        key=problem.key if len(problem.key) <= MAX_KEY else problem.key[: MAX_KEY - 3] + "...",
        where=cut(problem.where, MAX_TEXT),
        message=cut(problem.message, MAX_TEXT),
        hint=cut(problem.hint, MAX_TEXT),
    )


def _position(where: str) -> tuple[bool, str, int, int]:
    """A place in order: those without one last, then by file, line and column; 0: unknown."""
    found = re.fullmatch(r"(.*?)(?::(\d+))?(?::(\d+))?", where, re.DOTALL)
    file, line, column = found.groups(default="0") if found else (where, "0", "0")
    return not where, file, int(line), int(column)

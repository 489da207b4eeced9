"""What comes of holding a plugin to its contracts: the results of `neox plugins test`."""

import os
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

from attrs import frozen

from neox_author.apart import Outcome, try_apart
from neox_author.project import as_installed, read_project
from neox_author.try_kit import CLAUSE, OFFER

MODULE = "neox_author.try_kit"


@frozen
class Result:
    """What came of one component, or of the listing, whose `kind` is "".

    * clauses: those that hold, or do not apply: then with the reason.
    * fault: the clause that does not hold, or how the process ended; "" where all is well.
    """

    kind: str
    name: str
    clauses: tuple[tuple[str, str], ...]
    fault: str


def results_of(plugin: str, seconds: float) -> Iterator[Result]:
    """The result of the listing of a plugin, and then of each component.

    plugin: its folder, or the name of an installed one
    seconds: the longest time for one component

    Raises UsageError, or PluginError for a folder that is not that of a plugin.
    """
    project = read_project(Path(plugin)) if os.sep in plugin or Path(plugin).is_dir() else None
    name = project.name if project else plugin
    with as_installed(project) if project else nullcontext(()) as folders:
        paths = [*folders, *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)} if paths else None

        def outcomes(items: Sequence[tuple[str, str, str]]) -> Iterator[Outcome]:
            return try_apart(MODULE, items, seconds, "test", env)

        (listing,) = outcomes([(name, "", "")])
        yield Result("", name, _clauses(listing), listing.fault)
        offers = [(name, *each[1:]) for each in listing.told if each[0] == OFFER]
        for (_, kind, component), outcome in zip(offers, outcomes(offers), strict=True):
            yield Result(kind, component, _clauses(outcome), outcome.fault)


def _clauses(outcome: Outcome) -> tuple[tuple[str, str], ...]:
    return tuple((str(each[1]), str(each[2])) for each in outcome.told if each[0] == CLAUSE)

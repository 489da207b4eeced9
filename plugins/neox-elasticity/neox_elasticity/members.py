"""Which slots of the hosts are there, and which of them a run takes. Light."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from attrs import frozen

Slot = tuple[str, int]
"""A host, and the number of one of its slots."""
NAMED = 8
"""Spare hosts that a note names."""
Look = Callable[[], tuple[object, tuple[Slot, ...]]]
"""Returns what changes when the hostfile is written, and its slots. Raises NeoxError where it has faults."""


@frozen
class Team:
    """The slots that the ranks of a run take, in the order of the ranks."""

    slots: tuple[Slot, ...]

    def __len__(self) -> int:
        return len(self.slots)

    def include(self) -> str:
        """As the key `include` names them."""
        by_host: dict[str, list[str]] = {}
        for host, slot in self.slots:
            by_host.setdefault(host, []).append(str(slot))
        return "@".join(f"{host}:{','.join(slots)}" for host, slots in by_host.items())


@frozen
class Sizes:
    """The largest team of one of some numbers of ranks, from the first slots that are not lost."""

    sizes: Sequence[int]

    def there(self, listed: Sequence[Slot], lost: Collection[Slot]) -> tuple[Slot, ...]:
        """The slots that a run may have."""
        return tuple(slot for slot in listed if slot not in lost)

    def pick(self, listed: Sequence[Slot], lost: Collection[Slot]) -> Team | None:
        """A team, in the order of the hostfile; None where the slots are too few. lost: in the order of time."""
        return choose(self.there(listed, lost), self.sizes)

    def spare_in_words(self, listed: Sequence[Slot]) -> str:
        """Nothing: the run takes as many slots as it can."""
        return ""

    def needs(self) -> str:
        """For a message: what the run waits for."""
        return f"the fewest ranks that fit are {min(self.sizes)}"


@frozen
class WholeHosts:
    """Always `count` hosts with `each` slots: those at the top of the hostfile that have not failed, and then
    those that failed first.
    """

    count: int
    each: int

    def there(self, listed: Sequence[Slot], lost: Collection[Slot]) -> tuple[Slot, ...]:
        """All listed slots: a host that failed may be taken again."""
        return tuple(listed)

    def pick(self, listed: Sequence[Slot], lost: Collection[Slot]) -> Team | None:
        """The team of the next start; None where fewer than `count` hosts are listed with `each` slots."""
        failed = {host: number for number, (host, _) in enumerate(lost, 1)}
        able = sorted(self._able(listed), key=lambda host: failed.get(host, 0))
        chosen, taken = set(able[: self.count]), Counter[str]()
        team = []
        for host, slot in listed:
            if host in chosen and taken[host] < self.each:
                taken[host] += 1
                team.append((host, slot))
        return Team(tuple(team)) if len(chosen) == self.count else None

    def spare_in_words(self, listed: Sequence[Slot]) -> str:
        """The hosts that the first start does not take, and a later one may; "" where there are none."""
        spare = self._able(listed)[self.count :]
        more = f" and {len(spare) - NAMED:,} more" if len(spare) > NAMED else ""
        return f"may replace hosts that fail by the spare {', '.join(spare[:NAMED])}{more}" if spare else ""

    def _able(self, listed: Sequence[Slot]) -> list[str]:
        return [host for host, slots in Counter(host for host, _ in listed).items() if slots >= self.each]

    def needs(self) -> str:
        """For a message: what the run waits for."""
        return f"the run needs {self.count} hosts with {self.each} slots each"


def choose(there: Iterable[Slot], sizes: Sequence[int]) -> Team | None:
    """The largest team of one of `sizes`, from the first slots that are there; None where the slots are too few."""
    slots = tuple(there)
    fitting = [size for size in sizes if size <= len(slots)]
    return Team(slots[: max(fitting)]) if fitting else None


def change(now: Team, wanted: Team | None, there: Iterable[Slot], ran_s: float, least_s: float) -> str:
    """Why a run should end to continue as another team: "left", "joined", or "" for no reason.

    A slot of the run that is gone counts at once. More ranks count when the run has had its number for `least_s`, so
    that slots which come and go do not keep it from training. wanted: of the slots that are there. ran_s: seconds since
    the run has started.
    """
    if wanted is not None and not set(now.slots) <= set(there):
        return "left"
    if wanted is not None and len(wanted) > len(now) and ran_s >= least_s:
        return "joined"
    return ""


def restarts_help(failure: Mapping[str, object]) -> bool:
    """Whether a failure without a lost slot may not come again: no rank has reported a mistake of the user."""
    return not failure.get("users_mistake")


def lost_slots(failure: Mapping[str, object], team: Team) -> tuple[Slot, ...]:
    """The slots that a failed run has lost, by its failure.json: that of a rank which a signal has killed, or all of a
    host that has failed. None for any other failure, which would come again, or where the rank ended by the signal that
    asked it to stop.
    """
    rank, code, message = failure.get("rank"), failure.get("exit_code"), failure.get("message")
    if type(rank) is not int or not 0 <= rank < len(team) or not isinstance(message, str):
        return ()
    host, slot = team.slots[rank]
    if message.startswith(f"host {host}: "):
        return tuple(each for each in team.slots if each[0] == host)
    as_asked = failure.get("asked") is True and code == -signal.SIGTERM
    return ((host, slot),) if type(code) is int and code < 0 and not as_asked else ()

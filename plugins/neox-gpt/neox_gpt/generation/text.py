"""Ids to text: in pieces that no later id changes, up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from attrs import define, field

if TYPE_CHECKING:
    from neox_core.contracts import Tokenizer

UNFINISHED = "\N{REPLACEMENT CHARACTER}"


@define(eq=False)
class Text:
    """The text of ids as they come. stops: the text ends before the first of them. text: what was given so far."""

    tokenizer: Tokenizer
    stops: Sequence[str] = ()
    text: str = field(init=False, default="")
    stopped: bool = field(init=False, default=False)
    _ids: list[int] = field(init=False, factory=list)
    _whole: str = field(init=False, default="")

    def add(self, token: int) -> str:
        """What is certain with one more id.

        A character whose bytes span two tokens comes with the second one, and what may begin a stop string with the id
        that decides.
        """
        if self.stopped:
            return ""
        self._ids.append(token)
        self._whole = self.tokenizer.decode(self._ids)
        found = [at for at in (self._whole.find(stop, len(self.text)) for stop in self.stops) if at >= 0]
        if found:
            self.stopped = True
            return self._give(min(found))
        if self._whole.endswith(UNFINISHED):
            return ""
        return self._give(len(self._whole) - self._begun())

    def end(self) -> str:
        """The rest, when no id follows."""
        return "" if self.stopped else self._give(len(self._whole))

    def _give(self, end: int) -> str:
        piece = self._whole[len(self.text) : end]
        self.text += piece
        return piece

    def _begun(self) -> int:
        """How many characters at the end may be the beginning of a stop string."""
        longest = max(map(len, self.stops), default=0) - 1
        tails = range(min(longest, len(self._whole) - len(self.text)), 0, -1)
        return next((size for size in tails if any(each.startswith(self._whole[-size:]) for each in self.stops)), 0)

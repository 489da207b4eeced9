"""What an examination finds."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

State = Literal["ok", "warning", "fix"]


@frozen
class Finding:
    """One line of the result.

    * state: fix: a run fails, or does what nobody wants. warning: some runs do.
    * subject: what was looked at. found: what is there. hint: what to do; "" where all is well.
    * same: what all hosts of a run must have in common; "" where they may differ.
    """

    state: State
    subject: str
    found: str
    hint: str = ""
    same: str = ""


@frozen
class Examined:
    """What a host reports. clock: its time when it finished, in seconds since 1970."""

    findings: list[Finding]
    clock: float

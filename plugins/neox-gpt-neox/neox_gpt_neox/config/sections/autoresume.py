"""The keys of `adlr-autoresume`: a command that is asked whether the run has to save and end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import frozen
from attrs import validators as v

from neox_core.config.problem import Problem
from neox_core.config.schema.setting import setting


@frozen
class AutoresumeSettings:
    """When a run asks a command of the user's whether to save and end."""

    adlr_autoresume: bool = setting(
        False,
        help="Ask `autoresume-command` whether to save a checkpoint and end; GPT-NeoX asks the scheduler of one "
        "cluster of NVIDIA's.",
        changes="output",
        origin="megatron",
    )
    adlr_autoresume_interval: int = setting(
        1000,
        help="Steps between two questions of `adlr-autoresume`.",
        unit="steps",
        check=v.gt(0),
        changes="output",
        origin="megatron",
    )
    autoresume_command: tuple[str, ...] = setting(
        (),
        help="Program and arguments that rank 0 runs at each question, without a shell. It exits with 0: train on; 1: "
        "save and end. NEOX_STEP is the step; NEOX_AUTORESUME is `ask`, and `ended` when it runs once more after the "
        "save that follows.",
        changes="output",
    )
    autoresume_timeout: int = setting(
        30,
        help="Time that the command has to answer, while all ranks wait; without an answer the run trains on.",
        unit="seconds",
        check=v.gt(0),
        changes="output",
    )

    @property
    def enabled(self) -> bool:
        """Whether the config asks for it."""
        return self.adlr_autoresume


def autoresume_problems(config: Any, settings: AutoresumeSettings | None) -> Iterator[Problem]:
    """What cannot work. config: whose values are valid. settings: None where the run asks nobody."""
    if settings is None:
        for key in ("adlr_autoresume_interval", "autoresume_command", "autoresume_timeout"):
            if config.is_set(key):
                yield config.problem("does nothing without adlr-autoresume: true", key, severity="note")
        return
    if not settings.autoresume_command:
        hint = "autoresume-command: [PROGRAM, ARGUMENT]; `[test, '!', -e, FILE]` ends the run once FILE is there"
        yield config.problem("is required by adlr-autoresume", "autoresume_command", hint)
    elif not settings.autoresume_command[0]:
        message = "the first word names a program, and is empty"
        yield config.problem(message, "autoresume_command", "autoresume-command: [PROGRAM, ARGUMENT]")
    if config.value("save") is None:
        yield config.problem("is required by adlr-autoresume, which saves before it ends the run", "save")
    stall = config.value("stall_timeout")
    if 0 < stall <= settings.autoresume_timeout:
        message = f"{settings.autoresume_timeout} s are not below stall-timeout, {stall} s, after which the run ends"
        yield config.problem(message, "autoresume_timeout", f"autoresume-timeout: {max(1, stall // 2)}")

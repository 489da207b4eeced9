"""The progress of a run: its only mutable part, apart from tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen
from attrs import validators as v

from neox_core.errors import CheckpointError
from neox_core.plan.stored.saved import STATE
from neox_core.untrusted import replaces, short, strict_converter, structured

if TYPE_CHECKING:
    from neox_core.plan.runfile import RunPlan

_COUNT = v.and_(v.ge(0), v.le(2**62))
"""Largest value of a count: the data is indexed with int64."""
SCALER_STATE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
"""What a checkpoint holds of a loss scaler."""


@frozen
class Intervention:
    """A rewind: at step `at` a callback, `by`, had the run go back to step `to` and skip samples from then on.

    first, last: the samples that it skips, in the order of the run without any interventions; `last` is not skipped.
    """

    at: int = field(validator=_COUNT)
    to: int = field(validator=_COUNT)
    first: int = field(validator=_COUNT)
    last: int = field(validator=_COUNT)
    by: str

    def __attrs_post_init__(self) -> None:
        if self.to > self.at or self.first >= self.last:
            raise ValueError(f"from step {self.at} to {self.to}, without samples {self.first} to {self.last}")


@define
class TrainState:
    """step: finished optimizer steps. Samples and tokens are those of all ranks together, since the first step.

    data_hash: of the samples of all steps, where it is known: a resumed run must have the same. data_rounds:
    the number of samples for which their order was made, and to which it was extended since. data_contents: hashes
    of the contents of the datasets, which `data_hash` does not include. data_position: where the next sample
    starts, for plain text. interventions: of callbacks, in order. callbacks: the state of each, by plugin and name.
    """

    step: int = field(default=0, validator=_COUNT)
    consumed_samples: int = field(default=0, validator=_COUNT)
    consumed_tokens: int = field(default=0, validator=_COUNT)
    data_hash: int | None = None
    data_rounds: tuple[int, ...] = field(default=(), validator=v.deep_iterable(v.and_(v.ge(0), v.le(2**36))))  # 768 GiB
    data_contents: dict[str, list[str]] = field(factory=dict)
    data_position: dict[str, Any] | None = None
    interventions: tuple[Intervention, ...] = ()
    callbacks: dict[str, Any] = field(factory=dict)

    def skipped(self) -> tuple[tuple[int, int], ...]:
        """The samples that interventions leave out: ranges [first, last), rising and apart."""
        apart: list[tuple[int, int]] = []
        for each in sorted((each.first, each.last) for each in self.interventions):
            if apart and each[0] <= apart[-1][1]:
                apart[-1] = apart[-1][0], max(apart[-1][1], each[1])
            else:
                apart.append(each)
        return tuple(apart)

    def advance(self, plan: RunPlan, tokens: int | None = None) -> None:
        """Count a finished step. tokens: number of tokens that it read, by default those of whole samples."""
        samples = plan.batch.samples_before(self.step + 1) - plan.batch.samples_before(self.step)
        self.step += 1
        self.consumed_samples += samples
        self.consumed_tokens += samples * plan.model.seq_length if tokens is None else tokens


@frozen
class StoredState:
    """state.json of a checkpoint: everything that is neither a tensor nor the plan.

    schedule: its values by config key. plugins: id -> version. loss_scaler: fp16's. options: of each parameter group of
    the optimizer, those that the optimizer itself has changed. own: names of the state that each rank's optimizer has
    of its own; None: an earlier version wrote the checkpoint, without them. stages: as of an engine.
    """

    state: TrainState
    schedule: dict[str, Any]
    plugins: dict[str, str]
    neox_version: str
    skipped_steps: int = field(validator=_COUNT)
    loss_scaler: dict[str, Any]
    options: list[dict[str, Any]]
    own: tuple[str, ...] | None = None
    stages: tuple[int, ...] = field(default=(), validator=v.deep_iterable(_COUNT))

    def __attrs_post_init__(self) -> None:
        if fault := next(_faults(self), None):
            raise ValueError(fault)


def _faults(stored: StoredState) -> Iterator[str]:
    """What no run writes."""
    state, rounds = stored.state, stored.state.data_rounds
    if stored.skipped_steps > state.step:
        yield f"{stored.skipped_steps} of {state.step} steps are skipped"
    read = max(state.consumed_samples, *(each.last for each in state.interventions), 0)
    if rounds and (sorted({*rounds}) != [*rounds] or read > rounds[-1]):
        yield f"{read} samples are read, of an order of {', '.join(map(str, rounds[-5:]))}"
    if state.interventions and not rounds:
        yield "samples are skipped, of no order"
    position = state.data_position
    if position is not None and not rounds and position.get("step") != state.step:
        yield f"its position in the texts belongs to step {short(position.get('step'))}"
    for name, value in stored.loss_scaler.items():
        if name in SCALER_STATE and (not replaces(value, 0.0) or (name == "cur_scale" and not 0 < value < math.inf)):
            yield f"the loss scaler's {name} cannot be {short(value)!r}"
    for name, value in (pair for group in stored.options for pair in group.items()):
        if name in ("params", "lr") or not replaces(value, None):
            yield f"the optimizer's group option {short(name)!r} cannot be {short(value)!r}"


def stored_to_plain(stored: StoredState) -> dict[str, Any]:
    """The state as JSON holds it."""
    return dict(strict_converter().unstructure(stored))


def stored_from_plain(plain: dict[str, Any], folder: Path, step: int) -> StoredState:
    """The content of the state.json in `folder`. step: that of the manifest. Raises CheckpointError for another
    step, and where `plain` is not what a run writes.
    """
    error = f"{folder / STATE}: not the state of a run"
    stored = structured(strict_converter(), plain, StoredState, error, CheckpointError)
    if stored.state.step != step:
        message = f"{folder}: is at step {short(step)} by its manifest, at step {stored.state.step} by {STATE}"
        raise CheckpointError(message, hint="load another checkpoint")
    return stored

"""Where a run stands: the only part of it that changes, apart from tensors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen
from attrs import validators as v

from neox_core.errors import CheckpointError
from neox_core.untrusted import strict_converter, structured

if TYPE_CHECKING:
    from neox_core.plan.runfile import RunPlan

_COUNT = v.and_(v.ge(0), v.le(2**62))
"""Of what a tensor of int64 has to hold."""


@define
class TrainState:
    """step: finished optimizer steps. Samples and tokens are those of all ranks together, since the first step.

    data_hash: of the samples of all steps, where it is known: what a resumed run has to find there too. data_rounds:
    for how many samples their order was made, and to how many it was made longer since. data_contents: hashes of what
    the datasets hold, which `data_hash` does not know. data_position: where the next sample begins, of text that is
    read as it comes.
    """

    step: int = field(default=0, validator=_COUNT)
    consumed_samples: int = field(default=0, validator=_COUNT)
    consumed_tokens: int = field(default=0, validator=_COUNT)
    data_hash: int | None = None
    data_rounds: tuple[int, ...] = field(default=(), validator=v.deep_iterable(_COUNT))
    data_contents: dict[str, list[str]] = field(factory=dict)
    data_position: dict[str, Any] | None = None

    def advance(self, plan: RunPlan, tokens: int | None = None) -> None:
        """One more step is done. tokens: that it read, those of whole samples by default."""
        self.step += 1
        self.consumed_samples += plan.batch.train_batch
        self.consumed_tokens += plan.batch.train_batch * plan.model.seq_length if tokens is None else tokens


@frozen
class StoredState:
    """state.json of a checkpoint: all that is not a tensor and not the plan.

    schedule: its terms by config key. plugins: id -> version. loss_scaler: fp16's. options: of each parameter group of
    the optimizer, those that the optimizer itself has changed. own: names of what each rank's optimizer alone knows;
    None: of an earlier version, which did not say.
    """

    state: TrainState
    schedule: dict[str, Any]
    plugins: dict[str, str]
    neox_version: str
    skipped_steps: int = field(validator=_COUNT)
    loss_scaler: dict[str, Any]
    options: list[dict[str, Any]]
    own: tuple[str, ...] | None = None


_converter = strict_converter()


def stored_to_plain(stored: StoredState) -> dict[str, Any]:
    plain: dict[str, Any] = _converter.unstructure(stored)
    return plain


def stored_from_plain(plain: dict[str, Any], path: Path) -> StoredState:
    """Raises CheckpointError, naming `path`, for what is no stored state."""
    return structured(_converter, plain, StoredState, f"{path}: not the state of a run", CheckpointError)

"""Where a run stands: the only part of it that changes, apart from tensors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen
from attrs import validators as v
from cattrs import transform_error
from cattrs.errors import BaseValidationError
from cattrs.preconf.json import make_converter

from neox_core.errors import CheckpointError

if TYPE_CHECKING:
    from neox_core.plan.runfile import RunPlan


@define
class TrainState:
    """step: finished optimizer steps. Samples and tokens are those of all ranks together, since the first step.

    data_hash: of the samples of all steps, where it is known: what a resumed run has to find there too. data_rounds:
    for how many samples their order was made, and to how many it was made longer since. data_contents: hashes of what
    the datasets hold, which `data_hash` does not know. data_position: where the next sample begins, of text that is
    read as it comes.
    """

    step: int = field(default=0, validator=v.ge(0))
    consumed_samples: int = field(default=0, validator=v.ge(0))
    consumed_tokens: int = field(default=0, validator=v.ge(0))
    data_hash: int | None = None
    data_rounds: tuple[int, ...] = ()
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
    the optimizer, those that the optimizer itself has changed.
    """

    state: TrainState
    schedule: dict[str, Any]
    plugins: dict[str, str]
    neox_version: str
    skipped_steps: int
    loss_scaler: dict[str, Any]
    options: list[dict[str, Any]]


_converter = make_converter(forbid_extra_keys=True)


def stored_to_plain(stored: StoredState) -> dict[str, Any]:
    plain: dict[str, Any] = _converter.unstructure(stored)
    return plain


def stored_from_plain(plain: dict[str, Any], path: Path) -> StoredState:
    """Raises CheckpointError, naming `path`, for what is no stored state."""
    try:
        return _converter.structure(plain, StoredState)
    except BaseValidationError as error:
        raise CheckpointError(f"{path}: not the state of a run: {transform_error(error)[0]}") from error

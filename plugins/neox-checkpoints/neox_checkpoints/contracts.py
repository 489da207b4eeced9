"""What reads the checkpoints of another training program."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from attrs import field, frozen

if TYPE_CHECKING:
    from torch import Tensor

    from neox_core.plan.runfile import ModelPlan


@frozen
class Stored:
    """One tensor of a run, whole and in the layout of neox.

    * kind: weight: in the type in which the model computes. master: its fp32 copy, of a weight in fewer bits. state: of
      the optimizer.
    * name: of the parameter. state: the name of the optimizer's state, as the optimizer of neox has it.
    * tensor: on the CPU, of the parameter's shape; a state may also have one of its own, or be a number of shape [].
    """

    kind: Literal["weight", "master", "state"]
    name: str
    tensor: Tensor
    state: str | None = None


@frozen
class ImportedProgress:
    """Where the training stands: finished steps, those of them without an update, and the state of fp16's loss scale
    (`cur_scale`, `cur_iter`, `last_overflow_iter`, `cur_hysteresis`).
    """

    step: int
    skipped_steps: int = 0
    loss_scaler: Mapping[str, Any] = field(factory=dict)


class ForeignCheckpoint(Protocol):
    """One checkpoint that was opened: nothing in it has been run, and few of its tensors are in memory.

    * keys: of a neox config that continues the training. comments: by key, a line to write above it.
    * notes: lines on what is not carried over, or on what the other program computes in another way.
    * has_optimizer: whether `tensors` gives the state of the optimizer; False where it is not wanted.
    * files: the run's own, which a mistake in `keys` is reported in where one of them has the key.
    """

    keys: Mapping[str, Any]
    comments: Mapping[str, str]
    notes: Sequence[str]
    progress: ImportedProgress
    has_optimizer: bool
    files: Sequence[Path] = ()

    def tensors(self, model: ModelPlan) -> Iterator[Stored]:
        """Every tensor, one parameter after the other, each with its master and states.

        model: the model that follows from `keys`. Raises CheckpointError that names the file for a tensor that is
        missing, damaged, or of another shape.
        """
        ...


class CheckpointFormat(Protocol):
    """`target()`: the checkpoints of one training program; its name is what `neox checkpoint import --format` takes.

    * The target is also imported on the host, so it imports torch inside the functions that need it.
    * It runs nothing that a checkpoint holds, and takes no memory because a file says so.
    * `write_example(folder)`, which may be left out, writes a small checkpoint of the program: the check tries the
      format on it, and on damaged copies. So no file is in it that `open` and `tensors` can do without.
    """

    def recognises(self, folder: Path) -> str | None:
        """What a folder holds, in one line, by the names of its files; None: nothing of this format."""
        ...

    def open(self, folder: Path, configs: Sequence[Path], *, optimizer: bool) -> ForeignCheckpoint:
        """Read all of a checkpoint but its tensors.

        folder: of the checkpoint, or of several of which the newest is meant. configs: the run's files, where those
        beside the checkpoint are missing. optimizer: whether its state is wanted. Raises CheckpointError.
        """
        ...

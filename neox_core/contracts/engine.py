"""The engine of a run: its keys and plan on the host, and in a rank the train step and what a checkpoint stores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

from neox_core.errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from neox_core.checkpoint.publish import Ending
    from neox_core.checkpoint.write import RankContents
    from neox_core.config.schema.structure import Config
    from neox_core.contracts.architecture import Shapes
    from neox_core.contracts.curriculum import Curriculum
    from neox_core.contracts.store import StoredCheckpoints
    from neox_core.parallel.context import BuildContext
    from neox_core.parallel.row import BuildStage
    from neox_core.parallel.shard import Shard
    from neox_core.plan.rules.rule import Rule
    from neox_core.plan.runfile import BatchPlan, PrecisionPlan, RunPlan


@frozen
class Peak:
    """flops: of one rank, per second; None when not known. source: its origin, or why it is not known.

    measured: by this process, so that a faster run shows it to be wrong.
    """

    flops: float | None
    source: str
    measured: bool = False

    @classmethod
    def given(cls, tflops: float) -> Peak:
        """What a config says."""
        return cls(tflops * 1e12, f"{tflops:g} TFLOP/s a rank, as given by peak-tflops")

    def __str__(self) -> str:
        """The line at the start of a run."""
        return f"mfu against a peak of {self.source}" if self.flops is not None else f"mfu is left out: {self.source}"

    def mfu(self, flops: float) -> float | None:
        """A rank's `flops` per second as a fraction of the peak; None where the peak is not known."""
        share = flops / self.flops if self.flops is not None else None
        return None if share is not None and self.measured and share > 1 else share


@frozen
class Sharding:
    """What an engine does with the model's state, as a config asks for it.

    stage: of ZeRO, 0 to 3. owns_parameters: a rank steps whole parameters of its own.
    offload_optimizer, offload_parameters: off the device.
    whole_weights: a checkpoint has a weight in one piece also where ranks hold parts of it.
    load_masters: a run resumes from the fp32 copies of weights, not from the rounded ones.
    sparse_gradients: the gradient of a table is sent as the rows that a step has used.
    background: checkpoints are written while the run trains; None: where the engine finds that it pays.
    """

    stage: int = 0
    owns_parameters: bool = False
    offload_optimizer: bool = False
    offload_parameters: bool = False
    whole_weights: bool = False
    load_masters: bool = True
    sparse_gradients: bool = False
    background: bool | None = False


class Memory(Protocol):
    """Bytes that a run is expected to take on the device of the fullest rank; activations: for the backward pass."""

    @property
    def total(self) -> int: ...
    @property
    def activations(self) -> int: ...

    def in_words(self) -> str:
        """The sum and its parts."""


class EnginePlanner(Protocol):
    """The planner of an engine: an object, light, that the host asks before anything starts.

    rules: asked where the engine is chosen. recomputes: whether the engine has a function of its own that recomputes
    activations. One that does what an optimizer's `Component.uses` asks for says so in `optimizer_uses`, a tuple.
    One whose data-parallel ranks may have different parts of a parameter (its attribute `spread`) has `spreads`, True.
    A class of it may leave out what has a default here.
    """

    rules: Sequence[Rule] = ()
    recomputes: bool = False

    def sharding(self, config: Config) -> Sharding:
        """What a valid config asks for."""
        return Sharding()

    def precision(self, config: Config) -> PrecisionPlan:
        """The types that a valid config asks for. The keys of precision are the engine's: most of them set it up."""

    def plan(
        self, config: Config, batch: BatchPlan, precision: PrecisionPlan, *, gradient_clipping: float
    ) -> dict[str, Any]:
        """`plan.engine`: plain values for the engine of the ranks."""

    def memory(
        self, config: Config, plan: RunPlan, held: Shapes, activations: int, state_numbers: tuple[float, float] | None
    ) -> Memory:
        """What the fullest rank of a plan holds.

        held: the shapes of its parameters. activations: bytes that its backward pass needs.
        state_numbers: of the optimizer's component; None where it declares none.
        """

    def key_of(self, config: Config, path: str) -> str | None:
        """The config key that makes a value of `plan.engine`, for a run that resumes with another value.

        path: of the value, its keys joined by dots. It is the config key itself, or one key makes values of many paths.
        None: another field of the plan has the value too.
        """
        return None


class Storage(Protocol):
    """What a checkpoint reads and writes of an engine.

    model: the module; its parameters are the weights in the planned dtype. optimizer: the planned one.
    shards: the pieces of fp32 numbers, at first the weights, that the optimizer of this rank steps; weights: those of
    weights that it stores; an element is in one alone. partitioned: whether a parameter is only a part of the weight.
    """

    device: torch.device
    model: nn.Module
    optimizer: torch.optim.Optimizer
    shards: tuple[Shard, ...]
    weights: tuple[Shard, ...]
    partitioned: bool

    def skipped_steps(self) -> int:
        """Updates left out so far, those before a resume included."""

    def count_skipped(self, steps: int) -> None:
        """Start counting from `steps`: those of the run that this one resumes."""

    def start_at(self, samples: int) -> None:
        """`samples` of the run are consumed: the model gets `sample_keys` of the numbers of those that follow."""

    def loss_scaler(self) -> Any:
        """The object whose plain attributes are the state of fp16's loss scale; None in other types."""

    def changed_options(self) -> list[dict[str, Any]]:
        """Of each parameter group, the options that are no longer what they were at the start, but for the lr."""

    def change_options(self, options: list[dict[str, Any]]) -> None:
        """Take over what `changed_options` gave. Raises CheckpointError for another number of groups or other types."""

    def copy_weights_to_masters(self) -> None:
        """Make the fp32 copies equal to the weights of the model."""

    def copy_masters_to_weights(self) -> None:
        """Make the weights of the model the fp32 copies, rounded; where each rank has whole copies."""

    def filled_groups(self) -> AbstractContextManager[None]:
        """The optimizer's groups with all that it steps in them."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The whole shape of every parameter: of those that are cut, with the parts on other ranks."""

    def stores(self, name: str) -> bool:
        """Whether this rank stores a parameter, or its part of one, among those of one copy of the model."""

    def whole_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight by name, one after the other; each is whole until the next is asked for. Collective."""

    def at_hand(self) -> AbstractContextManager[None]:
        """Around reading or writing `shards`, `weights` and the optimizer's state: some of it may be in files.

        An optimizer with modes is in that of evaluation meanwhile.
        """

    def new_state(self, shard: Shard, state: str, dtype: torch.dtype) -> Tensor:
        """Zeros for a state of the optimizer, laid out as `shard.stepped` is, and in a file where that is."""

    def weights_changed(self) -> None:
        """To be called after writing into `weights`. Collective."""


class BackgroundWriter(Protocol):
    """Writes the checkpoints of a run while it trains, one at a time; `background_writer()` of an engine makes it.

    `start` and `wait` are collective, and raise CheckpointError on every rank when any rank could not write.
    """

    def start(
        self,
        collected: Callable[..., AbstractContextManager[RankContents]],
        ending: Callable[[], Ending],
        shown: Path | str,
        store: StoredCheckpoints | None,
    ) -> bool:
        """Copy what `collected` gives and return, while a process writes the copy, and of all ranks' a checkpoint.

        False: not done; there is no memory for a copy, or it does not pay. shown: where the checkpoint will be.
        `collected(check=False)` does not look for nan in the weights: the process has to.
        """

    def wait(self) -> list[tuple[int, Path | str]]:
        """Wait until that checkpoint is complete, and return its step and place; nothing where there is none."""

    def attend(self, say: Callable[[str], None]) -> bool:
        """After each step, without waiting: say what was written. Whether writing has failed, on this rank."""

    def close(self) -> None:
        """At the end of the run, also after an error: give a checkpoint the time to be completed. Not collective."""


class Engine(Storage, Protocol):
    """One rank's model and optimizer in training: the step, what is measured, and the `Storage` of checkpoints.

    `passes`, a number that may be left out: how often a batch of the last step went through the model, a pass without
    gradients as a third, for the FLOPs in the log; without it, once.

    `evaluation_metrics()`, which may be left out too: the means of what the objective measured in the last `evaluate`,
    as `metrics()` gives those of training. The log has them beside the validation loss, as `valid_<name>`.

    `find_source()`, which may be left out: in words, what first gave a number that is not finite, such as "layers.1.mlp
    gives"; "" where nothing did. Repeats the step that `find_nonfinite` repeats, or the last one. Collective.

    `background_writer()` makes a `BackgroundWriter`; an engine whose `Sharding.background` is always False needs none.

    `notes`, which may be left out: lines for people, shown at the start. `stages`, too: where each stage of a pipeline
    begins in the row of layers, then its end, and whole numbers of the engine's own; state.json has it for resuming.
    """

    def train_step(self, batches: Iterator[Tensor], lr: float) -> Tensor:
        """Forward and backward over the next `gradient_accumulation` micro-batches, then the update at rate `lr`.

        First `at_step(step)`, from 0, of the model's modules that have it. batches: int64 [micro_batch, seq + 1] each.
        Draws nothing from torch's generator. Returns, without waiting, the rank's or pipeline's mean loss. Collective.
        """

    def made_update(self) -> bool | Tensor:
        """Whether the last step's gradient was finite, so that its update was made.

        A scalar on the device where the host does not look at it; the weights are spoilt then if it is False.
        """

    def find_nonfinite(self) -> list[str]:
        """The parameters whose gradient was not finite, this rank's own before any average, last layer first.

        Of the first in the row of steps that ends with the last one, none of which made an update. Repeats that step,
        so nothing can be trained or saved afterwards. Collective.
        """

    def evaluate(self, batches: Iterable[Tensor]) -> list[Tensor]:
        """This rank's loss of each batch times its share of the weights: scalars whose mean is that over what counts.

        In evaluation mode, without gradients and auxiliary losses. It changes nothing, no generator either. Collective.
        """

    def grad_norm(self) -> float | None:
        """Norm of the whole gradient of the last step, before clipping; None before the first. Waits for the device."""

    def loss_scale(self) -> float | None:
        """None unless training in fp16."""

    def metrics(self) -> Mapping[str, Tensor]:
        """The means of what objective and model measured since the last call: scalars on the device by name."""

    def timings(self) -> dict[str, float]:
        """Milliseconds of the parts of the last step, where the engine times them, else empty."""

    def close(self) -> None:
        """Let go of what the engine hooked into the model."""


class EngineMaker(Protocol):
    """`target(plan: RunPlan) -> EngineMaker`, before torch is imported: its module must be light.

    Sets what the engine's libraries have to find when they are imported.
    """

    @property
    def libraries(self) -> Sequence[str]:
        """Distributions that it computes with besides torch: ranks with other versions of them do not start."""
        return ()

    def recompute_by(self) -> Callable[..., Tensor] | None:
        """`by(f, *tensors)`, which recomputes `f`, where the plan leaves that to the engine; None where it does not."""
        return None

    def build_stage(self) -> BuildStage:
        """What cuts a row of layers into stages. Raises ConfigError where the engine has no pipeline."""
        raise ConfigError("the engine has no pipeline", hint="pipe-parallel-size: 1, or another engine")

    def build(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        context: BuildContext,
        curriculum: Curriculum | None = None,
    ) -> Engine:
        """The engine over model and optimizer. curriculum: the one that the plan names. Collective."""

    def find_peak(self, device: torch.device, product: Callable[[Tensor, Tensor], Tensor]) -> Peak:
        """What the MFU of a rank is measured against, where the config gives no peak.

        device: of the rank. product: (x, weight) -> x @ weight.T, as the model computes it.
        """

    def finish(self, rank: int) -> None:
        """After the last step: print what was measured, remove what was only of use while the run went on."""
        return

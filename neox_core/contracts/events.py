"""What takes part in a run beside its steps: callbacks, which act at its events, and evaluators, which measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from attrs import field, frozen
from attrs import validators as v

if TYPE_CHECKING:
    from neox_core.contracts.engine import Engine
    from neox_core.contracts.objective import Samples, SampleStream
    from neox_core.parallel.context import BuildContext
    from neox_core.plan.runfile import DataSource, RunPlan

Where = Literal["rank 0", "every rank", "collective"]


@frozen
class Ask:
    """What a callback asks of the run.

    * do: "stop" after this step, with a checkpoint; "save" a checkpoint now; "rewind" to the last checkpoint of this
      run and train from there without the samples of some steps.
    * why: one line for people and for the checkpoint.
    * first, last: for "rewind": first and last step whose samples are skipped, the first finished. Those saved stay.
    """

    do: Literal["stop", "save", "rewind"] = field(validator=v.in_(("stop", "save", "rewind")))
    why: str = field(validator=v.instance_of(str))
    first: int = field(default=0, validator=[v.instance_of(int), v.ge(0), v.lt(1 << 62)])
    last: int = field(default=0, validator=[v.instance_of(int), v.ge(0), v.lt(1 << 62)])


class Callback(Protocol):
    """`target(run: RunInfo, context: BuildContext, settings) -> Callback`: acts at events of a run, in its ranks.

    It has a method for one event or more; what is left out costs nothing. Steps are optimizer steps, and `step` is the
    number of finished ones. The target has the attribute `where`:

    * "rank 0": it is made on rank 0 alone, and makes no collective call. What it asks holds for all ranks.
    * "every rank": it is made on every rank, and makes no collective call. All ranks ask the same, so it decides from
      what is the same on all: `step`, `losses`, `loss` and `lr` of `values`; times and memory are of the rank.
    * "collective": the same, and every method may make collective calls, on every rank in the same order.

    The attribute `rewinds` is True where it may ask to rewind. A run whose samples cannot be skipped (text that is read
    in order, a curriculum that chooses samples) then does not start.

    * A target with a fourth argument `engine` gets the `Engine`, after a checkpoint is loaded. It may add states
      of the shape of a parameter to the optimizer, and calls no collective method unless it is collective.
    * `step` is called between two steps and does not wait for the device; the other methods may.
    * Random generators are restored after each call; it leaves weights, learning rates and torch's modes as they are.
    * An exception ends the run with an error that names the plugin and the event. Without collective calls, all ranks
      end together, at the next log, evaluation or save at the latest; nothing is saved after it. One of a collective
      callback ends its rank, and the launcher ends the others.
    * A component with a `planner` gives the run its batch, in place of the batch keys: a light function
      `planner(settings, num_ranks, data_parallel) -> BatchPlan`, called on the host, which raises MisfitError; it
      may return None to leave the batch to its keys.
    * What a callback does follows from its settings, its calls and its state, so a resumed run does the same. A step is
      in `losses` of one call only: of `log`, or of `save` where a save comes before the log.
    """

    where: ClassVar[Where]
    rewinds: ClassVar[bool] = False

    def start(self, step: int) -> Ask | None:
        """Before the first step of this process, after `restore`. Asks nothing but "save"."""

    def step(self, step: int) -> Ask | None:
        """After each step. It asks nothing but "stop", which the ranks agree on without waiting: one step later."""

    def measured(self, step: int) -> Mapping[str, float]:
        """After `step`: floats by name, a word, for the log of this step, the same on all ranks; none: no line."""

    def log(self, step: int, values: Mapping[str, float], losses: Sequence[tuple[int, float]]) -> Ask | None:
        """At a log step. values: as a monitor gets them; callbacks share the mapping and do not change it.

        losses: (step, mean loss of that step over all ranks) of each step since the last call with losses.
        """

    def evaluated(self, step: int, values: Mapping[str, float]) -> Ask | None:
        """After an evaluation of the validation split. values: the validation loss and the evaluators' numbers."""

    def save(self, step: int, losses: Sequence[tuple[int, float]]) -> Ask | None:
        """Before a checkpoint is written, which "rewind" prevents. losses: as for `log`."""

    def saved(self, step: int, folder: Path | str) -> None:
        """After a checkpoint is complete. folder: its address where that is in a store.

        One that is written while the run trains: before the next one, a rewind, or the end, so `step` may be past.
        """

    def state(self) -> Any:
        """For the checkpoint, beside `restore`: what JSON holds without a change; None: nothing. Equal on all ranks."""

    def restore(self, state: Any) -> None:
        """Continue from what `state` gave at the checkpoint from which the run resumes, or to which it rewinds."""

    def rewound(self, step: int, ask: Ask) -> None:
        """After the run has gone back to `step` because this callback asked, and after `restore`."""

    def end(self, step: int) -> None:
        """After the last step, evaluation and save of this process; not after an error."""


class EvaluationRun(Protocol):
    """What an evaluator measures: the run, its data and its model.

    * plan, context: of the run. context.groups.world is the group of all ranks; None where there is one.
    * vocab_size: every token id is below it.
    * engine: `evaluate` gives losses, `whole_weights` the weights. Its methods are collective.
    """

    plan: RunPlan
    context: BuildContext
    vocab_size: int
    engine: Engine

    def open(self, sources: Sequence[DataSource]) -> Samples | SampleStream:
        """`eval-iters` batches of validation samples of some datasets alone, as the objective makes them. Opened once.

        sources: some of plan.data.valid; () for the validation part of plan.data.prefix. Raises DataError.
        """

    def loss(self, samples: Samples | SampleStream) -> float:
        """Mean loss of `eval-iters` batches of samples, in nats a token, without dropout; equal on all ranks.

        Collective. Waits for the device.
        """


class Evaluator(Protocol):
    """`target(run: EvaluationRun, settings) -> Evaluator`: numbers of the model, beside the validation loss.

    * It is made on every rank, before the first step; what it cannot read is an error then.
    * Every rank makes the same collective calls in the same order, and gets the same numbers, those of one rank alone.
    * It leaves weights, optimizer, `run` and torch's modes (gradients, default dtype, evaluation) as they are. It may
      wait for the device. The random generators of the process are restored after each call.
    * A name of a number is a word of 300 letters, digits, `_`, `.` and `-` at most, which neither the run nor another
      evaluator has. `valid_<name>_loss` in nats a token and `valid_<name>_perplexity` are shown as the validation loss.
    * An exception ends the run with an error that names the plugin. One with `measures = False` gives no numbers.
    """

    def evaluate(self, step: int) -> Mapping[str, float]:
        """Numbers by name, after `step` finished steps. Collective. The same weights give the same numbers."""

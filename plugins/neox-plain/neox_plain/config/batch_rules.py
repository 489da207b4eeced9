"""Rules of the warm-up of the batch size."""

from collections.abc import Iterator

from neox_core.config.problem import MisfitError, Problem
from neox_core.config.schema.sections.training import BatchSection, TrainingSection
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import rule
from neox_core.plan.runfile import BatchPlan

KEY = "rampup_batch_size"
MOST_SIZES = 100_000
"""Sizes that a batch may have before it is whole: a run lists them all."""


@rule(KEY, "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_iters")
def batch_can_grow(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The batch grows to train_batch_size, and each of its sizes is a whole number of micro-batches of all ranks."""
    ramp = config.section(BatchSection).rampup_batch_size
    if ramp is None:
        return
    if min(ramp) < 1:
        yield config.problem("must be three numbers above 0", KEY, "such as [32, 32, 100000]")
        return
    try:
        batch = shape.batch(config)
    except MisfitError:
        return  # which another rule reports
    if batch.ramp is None:
        yield config.problem("contradicts a callback that decides the batch size by the number of ranks", KEY)
        return
    first, growth, _ = ramp
    unit, last = batch.micro_batch * batch.data_parallel, batch.train_batch
    if first >= last or (last - first) % growth:
        yield config.problem(f"{first} does not grow to train_batch_size {last} in steps of {growth}", KEY)
    if (last - first) // growth > MOST_SIZES:
        said = f"grows {(last - first) // growth:,} times, and {MOST_SIZES:,} are possible"
        yield config.problem(said, KEY, "let the batch grow in larger steps")
    if first % unit or growth % unit:
        said = f"{unit} samples are a micro-batch of each data-parallel rank, and {first} or {growth} is not a multiple"
        yield config.problem(said, KEY, "lower train_micro_batch_size_per_gpu, or change these numbers")
    elif first < last and not (last - first) % growth and (last - first) // growth <= MOST_SIZES:
        yield from _short_run(config, batch)
    for chosen in config.components("curriculum"):
        said = f"contradicts {chosen.entry.component.name}, which counts steps of whole batches"
        yield config.problem(said, KEY, "remove one of the two")


def _short_run(config: Config, batch: BatchPlan) -> Iterator[Problem]:
    """A run that ends before its batch is whole."""
    steps = config.section(TrainingSection).train_iters
    read = batch.samples_before(steps)
    size = read - batch.samples_before(steps - 1)
    if size < batch.train_batch:
        said = f"the run ends after {read:,} samples with a batch of {size}, before it has grown to train_batch_size"
        yield config.problem(f"{said} {batch.train_batch}", KEY, severity="note")

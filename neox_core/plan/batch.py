"""The arithmetic of a batch."""

from neox_core.config.problem import MisfitError
from neox_core.plan.runfile import BatchPlan


def solve_batch(
    train_batch: int | None, micro_batch: int | None, accumulation: int | None, data_parallel: int
) -> BatchPlan:
    """train_batch = micro_batch * accumulation * data_parallel, from what is given. Raises MisfitError.

    At least one of train_batch and micro_batch is needed. Accumulation is 1 unless given or implied by the others.
    """
    if micro_batch is None:
        if train_batch is None:
            raise MisfitError("is required", "train_micro_batch_size_per_gpu", "or train_batch_size")
        micro_batch = _share(train_batch, (accumulation or 1) * data_parallel, accumulation, data_parallel)
    if train_batch is None:
        steps = accumulation or 1
        return BatchPlan(micro_batch, steps, data_parallel, micro_batch * steps * data_parallel)
    if accumulation is None:
        accumulation = _share(train_batch, micro_batch * data_parallel, None, data_parallel, micro_batch)
    if micro_batch * accumulation * data_parallel != train_batch:
        product = micro_batch * accumulation * data_parallel
        said = f"is {train_batch}, but {_product(micro_batch, accumulation, data_parallel)} = {product}"
        raise MisfitError(said, "train_batch_size", f"leave one of the three out, or set it to {product}")
    return BatchPlan(micro_batch, accumulation, data_parallel, train_batch)


def _share(train: int, by: int, accumulation: int | None, data_parallel: int, micro: int | None = None) -> int:
    if train % by:
        said = f"{train} cannot be divided by {_product(micro, accumulation, data_parallel)} = {by}"
        raise MisfitError(said, "train_batch_size", f"{max(1, round(train / by)) * by} can")
    return train // by


def _product(micro: int | None, accumulation: int | None, data_parallel: int) -> str:
    named = ((micro, "samples"), (accumulation, "accumulation steps"), (data_parallel, "ranks"))
    return " x ".join(f"{value} {name}" for value, name in named if value is not None)

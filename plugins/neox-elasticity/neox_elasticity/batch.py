"""The batch size of an elastic run for the number of ranks it has; the core asks for it before the run. Light."""

from __future__ import annotations

from collections.abc import Iterator

from neox_core.config.problem import MisfitError
from neox_core.plan.runfile import BatchPlan
from neox_elasticity.settings import ElasticityBlock, ElasticitySettings
from neox_elasticity.solve import Fit, micro_batch, other_batch, solve

BLOCK = "elasticity"
NEAREST = 2
"""Number of sizes on each side that a message names."""


def plan_batch(settings: ElasticitySettings, num_ranks: int, copies: int) -> BatchPlan | None:
    """The batch on `num_ranks` ranks, which are `copies` copies of the model; None: that of the batch keys.

    Raises MisfitError where none fits.
    """
    block = settings.elasticity
    if not block.enabled:
        return None
    for fault in faults(block):
        raise fault
    fit, each = fitting(block), max(1, num_ranks // copies)
    if copies not in fit.copies:
        raise _misfit(block, fit, copies, each)
    micro = micro_batch(fit.batch, copies, block.micro_batch_sizes)
    return BatchPlan(micro, fit.batch // (copies * micro), copies, fit.batch)


def fitting(block: ElasticityBlock) -> Fit:
    """The batch, and the numbers of copies within the block's bounds. Raises MisfitError where there is none."""
    try:
        fit = solve(block)
    except ValueError as error:
        raise MisfitError(str(error), f"{BLOCK}.max_train_batch_size", "raise it, or min_gpus and max_gpus") from None
    gpus = block.model_parallel_size if block.version == 0.2 else 1
    within = tuple(count for count in fit.copies if block.min_gpus <= count * gpus <= block.max_gpus)
    if not within:
        all_of_them = _listed([count * gpus for count in fit.copies])
        message = f"leaves none of the numbers that share {fit.batch} samples: {all_of_them}"
        raise MisfitError(message, f"{BLOCK}.max_gpus", "widen min_gpus to max_gpus")
    return Fit(fit.batch, within)


def faults(block: ElasticityBlock) -> Iterator[MisfitError]:
    """What cannot be within the block."""
    largest, most = max(block.micro_batch_sizes), block.max_train_batch_size
    if largest > most:
        yield MisfitError(
            f"{largest} is more than max_train_batch_size, {most}", f"{BLOCK}.micro_batch_sizes", "lower it"
        )
    if block.min_gpus > block.max_gpus:
        yield MisfitError(f"{block.min_gpus} is more than max_gpus, {block.max_gpus}", f"{BLOCK}.min_gpus", "lower it")
    for key in ("num_gpus_per_node", "model_parallel_size") if block.version == 0.1 else ():
        if getattr(block, key) != 1:
            yield MisfitError("does nothing with version 0.1", f"{BLOCK}.{key}", f"remove it, or {BLOCK}.version: 0.2")
    nodes, width = block.num_gpus_per_node, block.model_parallel_size
    if block.version == 0.2 and nodes % width:
        yield MisfitError(
            f"{nodes} cannot be divided by {BLOCK}.model_parallel_size {width}",
            f"{BLOCK}.num_gpus_per_node",
            f"{max(1, round(nodes / width)) * width} can",
        )
    elif block.version == 0.2 and largest <= most < largest * (nodes // width):
        copies = nodes // width
        yield MisfitError(
            f"a node of {copies} copies takes {largest * copies} samples at once, more than {most}",
            f"{BLOCK}.max_train_batch_size",
            f"raise it to {largest * copies}, or remove the micro-batch {largest}",
        )


def in_words(block: ElasticityBlock, plan: BatchPlan, each: int) -> str:
    """What follows from a block, in one line. each: ranks of a copy."""
    fit = fitting(block)
    here = f"{plan.micro_batch} a copy x {plan.gradient_accumulation} accumulated x {plan.data_parallel}"
    sizes = [count * each for count in fit.copies]
    return f"{fit.batch} samples a step on {_listed(sizes)} ranks; here, on {plan.data_parallel * each}, {here}"


def _misfit(block: ElasticityBlock, fit: Fit, copies: int, each: int) -> MisfitError:
    below = [count * each for count in fit.copies if count < copies][-NEAREST:]
    above = [count * each for count in fit.copies if count > copies][:NEAREST]
    ranks, counted = copies * each, copies * (each if block.version == 0.2 else 1)
    inside = counted in range(block.min_gpus, block.max_gpus + 1) and ranks % block.num_gpus_per_node == 0
    if inside:
        message = f"{fit.batch} samples a step do not divide over {ranks} ranks"
    elif ranks % block.num_gpus_per_node:
        message = f"{ranks} ranks are not whole nodes of {block.num_gpus_per_node}"
    else:
        message = f"{counted} is not from min_gpus {block.min_gpus} to max_gpus {block.max_gpus}"
    hint = f"take {_listed([*below, *above], 'or')} ranks, the nearest that fit"
    other = other_batch(block, copies) if inside and block.version == 0.2 else 0
    if other:
        hint += f"; without elasticity these ranks could take {other} samples, with other losses"
    return MisfitError(message, f"{BLOCK}.enabled", hint)


def _listed(numbers: list[int], word: str = "and") -> str:
    *rest, last = map(str, numbers)
    return f"{', '.join(rest)} {word} {last}" if rest else last

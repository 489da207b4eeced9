"""The evaluator: the validation loss at the average of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from neox_plain.api import spread_of
from torch import Tensor

from neox_ema.average import averages

if TYPE_CHECKING:
    from neox_core.contracts.engine import Engine
    from neox_core.contracts.events import EvaluationRun
    from neox_core.parallel.groups import Groups
    from neox_core.parallel.shard import Shard


class Evaluator:
    """`valid_ema_loss` and `valid_ema_perplexity`. During the evaluation the model has the average as its weights."""

    def __init__(self, run: EvaluationRun, settings: None) -> None:
        self.run, self.samples = run, run.open(())

    def evaluate(self, step: int) -> dict[str, float]:
        with averaged(self.run.engine, self.run.context.groups):
            loss = self.run.loss(self.samples)
        return {"valid_ema_loss": loss, "valid_ema_perplexity": math.exp(loss) if loss < 700 else math.inf}


@contextmanager
def averaged(engine: Engine, groups: Groups) -> Iterator[None]:
    """The model with the average as its weights, and after it with the weights that it had, to the bit. Collective."""
    with torch.no_grad():
        new = _whole_averages(engine, groups)
        kept = {}
        for shard in engine.weights:
            weight = shard.part_of(shard.stepped)
            if shard.name in new:
                kept[shard.name] = weight.clone()
                weight.copy_(new[shard.name])
        del new
        engine.weights_changed()
    try:
        yield
    finally:
        with torch.no_grad():
            for shard in engine.weights:
                if shard.name in kept:
                    shard.part_of(shard.stepped).copy_(kept[shard.name])
            engine.weights_changed()


def _here(shard: Shard) -> bool:
    """Whether this rank steps all that it has of a parameter, also of one that is spread over data-parallel ranks."""
    return shard.whole and (shard.stores is None or spread_of(shard.stepped) is not None)


def _whole_averages(engine: Engine, groups: Groups) -> dict[str, Tensor]:
    """The average of each trained parameter of this rank's model, flat. Under ZeRO each rank has a part."""
    mine, shards = averages(engine), {each.name: each for each in engine.shards}
    apart = groups.data_size > 1 and not all(map(_here, engine.shards))
    flag = torch.tensor(int(apart), device=engine.device)
    if groups.data_size > 1:
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=groups.data)
    if not int(flag):
        return {name: part.clone() for name, part in mine.items()}
    whole = {}
    for weight in engine.weights:
        parameter = weight.stepped
        if not parameter.requires_grad:
            continue
        flat = torch.zeros(parameter.numel(), device=engine.device)
        if weight.name in mine:
            shard = shards[weight.name]
            flat[shard.first : shard.first + shard.count] = mine[weight.name]
        dist.all_reduce(flat, group=groups.data)
        whole[weight.name] = flat
    return whole

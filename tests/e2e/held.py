"""Bytes that ranks hold in training: `python held.py OUT {RANKS: CASES}`, as layouts.py.

Each case is its name, and the path and digest of a run file. `OUT/<ranks>/<name>.json` has for each rank the bytes of
the weights, of the fp32 copies, of the optimizer's state, and the most of the gradients, each counted by storages.
"""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from layouts import ENGINES, run_ranks, warm_up
from neox_deepspeed.api import build_stage
from neox_gpt.architecture import GPTArchitecture
from neox_gpt.build import build_decoder_stage, build_model
from torch import Tensor
from torch.utils._pytree import tree_leaves

from neox_core.parallel.context import build_context
from neox_core.parallel.groups import build_groups
from neox_core.plan.runfile import RunPlan, read_runfile
from neox_core.run.optimizer import build_optimizer

VOCAB = 64


def storages(tensors: Iterable[Any]) -> dict[int, int]:
    """Bytes by address of the storages that some tensors have."""
    found = (each.untyped_storage() for each in tensors if isinstance(each, Tensor) and each.dim())
    return {each.data_ptr(): each.nbytes() for each in found if each.nbytes()}


def held(plan: RunPlan) -> dict[str, int]:
    groups = build_groups(plan.cluster)
    context = build_context(plan, groups, local_rank=0)
    if groups.pipe_size > 1:
        model = build_decoder_stage(plan, VOCAB, context, build_stage, eod=3)
    else:
        model = build_model(plan.model, VOCAB, context, eod=3)
    optimizer = build_optimizer(plan.optim, model, groups.data, GPTArchitecture.tables)
    engine = ENGINES[plan.engine_component.name](plan, model, optimizer, context, None)
    most = 0
    # where ZeRO 3 keeps this rank's part of every gradient
    partitions = getattr(
        getattr(getattr(engine, "_engine", None), "optimizer", None), "grad_partitions_flat_buffer", None
    )

    def look(*_: Any) -> None:
        nonlocal most
        own = [parameter.grad for parameter in engine.model.parameters()]
        most = max(most, sum(storages([*own, partitions]).values()))

    for parameter in engine.model.parameters():
        parameter.register_post_accumulate_grad_hook(look)

    def batches() -> Iterator[Tensor]:
        while True:
            yield torch.randint(VOCAB, (plan.batch.micro_batch, plan.model.seq_length + 1))

    stream = batches()
    for _ in range(2):
        engine.train_step(stream, 1e-3)
    weights = storages(getattr(each, "ds_tensor", each) for each in engine.model.parameters())
    stepped = storages(shard.stepped for shard in engine.shards)
    state = storages(tree_leaves(dict(engine.optimizer.state)))
    sums = {
        "weights": sum(weights.values()),
        "masters": sum(size for place, size in stepped.items() if place not in weights),
        "state": sum(state.values()),
        "gradients": most,
    }
    engine.close()
    return sums


def act(case: dict[str, Any], out: Path) -> None:
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, held(read_runfile(Path(case["run"]), case["digest"])))
    if dist.get_rank() == 0:
        (out / f"{case['name']}.json").write_text(json.dumps(every))


if __name__ == "__main__":
    warm_up()
    folder, every_case = Path(sys.argv[1]), json.loads(sys.argv[2])
    for world, cases in every_case.items():
        run_ranks(int(world), folder / world, cases, act)
    sys.stdout.flush()
    os._exit(0)

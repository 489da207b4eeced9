"""A rank that takes two steps of each run and notes what its engine did: `python observe.py RUN_FILE...`.

Each run leaves `seen-<rank>.json` in its run_dir.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

CALLS: list[dict[str, Any]] = []
SPIED = (
    "all_reduce",
    "reduce",
    "reduce_scatter_tensor",
    "all_gather_into_tensor",
    "all_gather",
    "broadcast",
    "_broadcast_coalesced",
)


def _spy(name: str) -> Callable[..., Any]:
    """The collective itself, and a note of what goes into it."""
    real = getattr(dist, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
        given = tensors[-1] if tensors else torch.cat([each.flatten() for each in args[1]])  # an output comes first
        size, rounded = float(given.detach().double().abs().sum()), bool((given == given.bfloat16()).all())
        note = {"name": name, "dtype": str(given.dtype), "numel": given.numel(), "size": size, "rounded": rounded}
        CALLS.append(note | {"backward": torch._C._current_graph_task_id() >= 0})
        return real(*args, **kwargs)

    return call


for each in SPIED:
    setattr(dist, each, _spy(each))  # before deepspeed looks for them

from neox_deepspeed.api import Engine, build_engine  # noqa: E402
from neox_deepspeed.silence_deepspeed import quiet_engine  # noqa: E402
from neox_gpt.architecture import GPTArchitecture  # noqa: E402
from neox_gpt.build import build_model  # noqa: E402

from neox_core.checkpoint.rng import seed_rank  # noqa: E402
from neox_core.data.batches import build_batches  # noqa: E402
from neox_core.data.tokenizer import padded_vocab  # noqa: E402
from neox_core.parallel.context import build_context  # noqa: E402
from neox_core.parallel.groups import build_groups  # noqa: E402
from neox_core.plan.runfile import RunPlan, read_runfile  # noqa: E402
from neox_core.run.optimizer import build_optimizer  # noqa: E402


def observe(plan: RunPlan) -> None:
    groups = build_groups(plan.cluster)
    context = build_context(plan, groups, int(os.environ["LOCAL_RANK"]))
    seed_rank(plan.train.seed, dist.get_rank(), context.device)
    model = build_model(plan.model, padded_vocab(plan.model, None), context)
    engine = build_engine(plan, model, build_optimizer(plan.optim, model, None, GPTArchitecture.tables), context)
    batches = build_batches(plan, "train", first_step=0, data_rank=groups.data_rank, data_size=groups.data_size)
    products: set[str] = set()
    model.final_norm.register_forward_pre_hook(lambda _, given: products.add(str(given[0].dtype)))
    model.layers[0].mlp.register_forward_hook(lambda _, given, out: products.add(f"mlp {out.dtype}"))
    engine.train_step(batches, 1e-3)
    CALLS.clear()
    loss = float(engine.train_step(batches, 1e-3))
    seen = _seen(engine) | {"calls": list(CALLS), "loss": loss, "norm": engine.grad_norm(), "hidden": sorted(products)}
    Path(plan.run_dir, f"seen-{dist.get_rank()}.json").write_text(json.dumps(seen))
    engine.close()


def _seen(engine: Engine) -> dict[str, Any]:
    stepped = {id(shard.stepped): shard.stepped for shard in engine.shards}
    return {
        "weights": sum(shard.count for shard in engine.weights),
        "masters": sum(shard.count for shard in engine.shards),
        "stepped": len(stepped),
        "types": sorted({str(tensor.dtype) for tensor in stepped.values()}),
        "weight_types": sorted({str(parameter.dtype) for parameter in engine.model.parameters()}),
        "whole": sorted(name for name, parameter in engine.model.named_parameters() if parameter.numel()),
        "total": sum(getattr(each, "ds_numel", each.numel()) for each in engine.model.parameters()),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    quiet_engine(debug=False)
    dist.init_process_group("gloo")
    for file in sys.argv[1:]:
        observe(read_runfile(Path(file), hashlib.sha256(Path(file).read_bytes()).hexdigest()))
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)

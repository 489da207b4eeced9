"""A rank that trains the quickstart's model, scaled down, with one optimizer after the other: `OUT NAMES_JSON`.

It leaves OUT/losses.json: the mean loss over the validation samples after the last step by optimizer, and at the start.
"""

import argparse
import inspect
import json
import os
import statistics
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from attrs import evolve
from layouts import make_plan
from torch import Tensor

from neox_core.build.context import build_context
from neox_core.build.engine import build_engine
from neox_core.build.model import build_model
from neox_core.build.optimizer import build_optimizer
from neox_core.build.quiet import quiet_engine
from neox_core.parallel.groups import Groups, build_groups
from neox_core.plan.runfile import RunPlan

STEPS, SEQ, BATCH, VOCAB = 500, 48, 8, 128
PEAK, WARMUP = 2e-3, 25
SOURCES = (argparse, statistics, textwrap, inspect)
SETTINGS = {
    "AdamW": {},
    "OneBitAdam": {"freeze_step": 100, "comm_backend_name": "gloo"},
    "ZeroOneAdam": {
        "var_freeze_step": 100,
        "var_update_scaler": 16,
        "local_step_scaler": 100,
        "local_step_clipper": 4,
        "comm_backend_name": "gloo",
    },
}
MODEL = {
    "num_layers": 3,
    "hidden_size": 48,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "seq_length": SEQ,
    "max_position_embeddings": SEQ,
    "padded_vocab_size": VOCAB,
    "norm": "rmsnorm",
    "position": "rotary",
    "activation": "swiglu",
    "parallel_residual": True,
    "tie_embeddings": False,
    "init_std": 0.05,
}


def rate(step: int) -> float:
    """A ramp, then a straight line to 0."""
    return PEAK * min(step / WARMUP, (STEPS - step) / (STEPS - WARMUP))


def windows(text: Tensor, seed: int, count: int) -> Tensor:
    """int64 [count, SEQ + 1]: runs of bytes from places that follow from the seed."""
    first = torch.randint(len(text) - SEQ - 1, (count,), generator=torch.Generator().manual_seed(seed))
    return torch.stack([text[each : each + SEQ + 1] for each in first.tolist()])


def batches(text: Tensor, groups: Groups) -> Iterator[Tensor]:
    """The micro-batch of this rank in each step."""
    mine = BATCH // groups.data_size
    for step in range(STEPS):
        yield windows(text, step, BATCH)[groups.data_rank * mine :][:mine]


def trained(plan: RunPlan, text: Tensor, held_out: Tensor) -> tuple[float, float]:
    """The validation loss before the first step and after the last."""
    groups = build_groups(plan.cluster)
    context = build_context(plan, groups, local_rank=0)
    model = build_model(plan.model, VOCAB, context)
    engine = build_engine(plan, model, build_optimizer(plan.optim, model, groups.data), context)
    valid = [windows(held_out, 9000 + place, 64) for place in range(2)]
    start = _mean(engine.evaluate(valid))
    stream = batches(text, groups)
    for step in range(STEPS):
        engine.train_step(stream, rate(step))
    end = _mean(engine.evaluate(valid))
    engine.close()
    return start, end


def _mean(losses: list[Tensor]) -> float:
    """Over the ranks too, which may be apart."""
    mean = torch.stack(losses).mean()
    dist.all_reduce(mean)
    return float(mean) / dist.get_world_size()


def main() -> None:
    torch.set_num_threads(1)
    quiet_engine(debug=False)
    out, names = Path(sys.argv[1]), json.loads(sys.argv[2])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{out}/.store", rank=rank, world_size=world)
    source = "".join(map(inspect.getsource, SOURCES)).encode("ascii", "ignore")
    text = torch.tensor(list(source), dtype=torch.int64)
    cut = len(text) * 9 // 10
    losses = {}
    for name in names:
        case = {
            **MODEL,
            "name": name,
            "optimizer": name,
            "optimizer_settings": {**SETTINGS[name]},
        }
        plan = make_plan(case, out, world)
        plan = evolve(plan, optim=evolve(plan.optim, gradient_clipping=1.0))
        losses["start"], losses[name] = trained(plan, text[:cut], text[cut:])
    if rank == 0:
        (out / "losses.json").write_text(json.dumps(losses))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

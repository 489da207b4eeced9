"""Two ranks that train the quickstart's model, scaled down, with one optimizer after the other: `OUT NAMES_JSON`.

They leave OUT/2/<name>.json: the mean loss over the validation samples at the start and at the end.
"""

import argparse
import inspect
import json
import statistics
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from attrs import evolve
from layouts import make_plan, run_ranks, warm_up
from neox_deepspeed.api import build_engine
from neox_gpt.build import build_model
from torch import Tensor

from neox_core.parallel.context import build_context
from neox_core.parallel.groups import Groups, build_groups
from neox_core.plan.runfile import RunPlan
from neox_core.run.optimizer import build_optimizer

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


def run_case(case: dict[str, str], out: Path) -> None:
    name = case["name"]
    source = "".join(map(inspect.getsource, SOURCES)).encode("ascii", "ignore")
    text = torch.tensor(list(source), dtype=torch.int64)
    cut = len(text) * 9 // 10
    plan = make_plan(
        {**MODEL, "name": name, "optimizer": name, "optimizer_settings": SETTINGS[name]}, out, dist.get_world_size()
    )
    plan = evolve(plan, optim=evolve(plan.optim, gradient_clipping=1.0))
    start, end = trained(plan, text[:cut], text[cut:])
    if dist.get_rank() == 0:
        (out / f"{name}.json").write_text(json.dumps({"start": start, "end": end}))


def main() -> None:
    warm_up()
    out, names = Path(sys.argv[1]), json.loads(sys.argv[2])
    run_ranks(2, out / "2", [{"name": name} for name in names], run_case)


if __name__ == "__main__":
    main()

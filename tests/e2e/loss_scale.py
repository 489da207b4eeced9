"""A rank that trains in fp16 with overflows on one rank: `python loss_scale.py OUT CASES_JSON`.

A case: its name, ZeRO stage, the engine's `fp16` block, and the steps at which the gradient of rank 1 overflows. It
leaves OUT/<name>-<rank>.json: of each step, the loss scale and the skipped steps after it, and a sum over the weights.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from attrs import evolve
from layouts import EOD, VOCAB, batches, make_plan
from torch import Tensor

from neox_core.build.context import build_context
from neox_core.build.engine import build_engine
from neox_core.build.model import build_model
from neox_core.build.optimizer import build_optimizer
from neox_core.build.quiet import quiet_engine
from neox_core.parallel.groups import build_groups
from neox_core.plan.runfile import PrecisionPlan

STEPS = 10


def run_case(case: dict[str, Any], out: Path) -> None:
    # The sum of a step's gradients over the ranks is within fp16's range, the overflow apart.
    made = make_plan({"name": case["name"], "zero": case["zero"], "steps": STEPS}, out, dist.get_world_size())
    precision, engine_config = PrecisionPlan("fp16", None), {**made.engine, "fp16": {"enabled": True, **case["fp16"]}}
    plan = evolve(made, precision=precision, engine=engine_config)
    groups = build_groups(plan.cluster)
    context = build_context(plan, groups, local_rank=0)
    model = build_model(plan.model, VOCAB, context, eod=EOD)
    overflowing = False

    def overflow(grad: Tensor) -> Tensor:
        return grad * float("inf") if overflowing else grad

    next(model.parameters()).register_hook(overflow)
    engine = build_engine(plan, model, build_optimizer(plan.optim, model), context)
    stream, seen = batches(plan, groups, 0, None), []
    for step in range(STEPS):
        overflowing = dist.get_rank() == 1 and step in case["overflows"]
        engine.train_step(stream, plan.optim.lr)
        weights = sum(float(shard.part_of(shard.stepped).double().abs().sum()) for shard in engine.weights)
        seen.append({"scale": engine.loss_scale(), "skipped": engine.skipped_steps(), "weights": weights})
    engine.close()
    (out / f"{case['name']}-{dist.get_rank()}.json").write_text(json.dumps(seen))


def main() -> None:
    torch.set_num_threads(1)
    quiet_engine(debug=False)
    from deepspeed.accelerator import get_accelerator

    # DeepSpeed advises against fp16 on a CPU, which is slow at it and right: enough to see where the scale goes.
    get_accelerator().is_fp16_supported = lambda: True
    out, cases = Path(sys.argv[1]), json.loads(sys.argv[2])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{out}/.store-{world}", rank=rank, world_size=world)
    for case in cases:
        run_case(case, out)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()

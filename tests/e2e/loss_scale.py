"""Two ranks that train in fp16 with overflows on one: `python loss_scale.py OUT CASES_JSON`.

A case: its name, ZeRO stage, the engine's `fp16` block, the steps at which the gradient of rank 1 overflows, and
optionally a checkpoint to start from; others save after SAVED steps. Without an `fp16` block it trains in fp32 under
the engine that it names, whose host does not look at gradients, as on a GPU. It leaves OUT/ranks/<name>-<rank>.json: of
each step, the loss scale and skipped steps after it, a sum over the weights; of a last one that overflows, what is to
blame.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist
from attrs import evolve
from layouts import ENGINES, EOD, VOCAB, batches, make_plan, run_ranks, warm_up
from neox_gpt.build import build_model
from torch import Tensor

from neox_core.checkpoint.checkpointer import Checkpointer
from neox_core.parallel.context import build_context
from neox_core.parallel.groups import build_groups
from neox_core.plan.runfile import PrecisionPlan
from neox_core.run.optimizer import build_optimizer

STEPS, SAVED = 10, 2


def run_case(case: dict[str, Any], out: Path) -> None:
    # The sum of a step's gradients over the ranks is within fp16's range, the overflow apart.
    of_plan = {key: case[key] for key in ("name", "zero", "load") if key in case}
    made = make_plan({**of_plan, "steps": STEPS}, out, dist.get_world_size())
    plan = made
    if "fp16" in case:
        engine_config = {**made.engine, "fp16": {"enabled": True, **case["fp16"]}}
        plan = evolve(made, precision=PrecisionPlan("fp16", None), engine=engine_config)
    groups = build_groups(plan.cluster)
    context = build_context(plan, groups, local_rank=0)
    model = build_model(plan.model, VOCAB, context, eod=EOD)
    overflowing = False

    def overflow(grad: Tensor) -> Tensor:
        return grad * float("inf") if overflowing else grad

    next(model.parameters()).register_hook(overflow)
    engine = ENGINES[case.get("engine", "deepspeed")](plan, model, build_optimizer(plan.optim, model), context)
    if "fp16" not in case:
        engine._looks = False
    checkpointer = Checkpointer(plan, engine, context)
    state = checkpointer.load().state
    stream, seen = batches(plan, groups, state.step, None), []
    for step in range(state.step, STEPS):
        overflowing = dist.get_rank() == 1 and step in case["overflows"]
        engine.train_step(stream, plan.optim.lr)
        weights = sum(float(shard.part_of(shard.stepped).double().abs().sum()) for shard in engine.weights)
        seen.append({"scale": engine.loss_scale(), "skipped": engine.skipped_steps(), "weights": weights})
        state.advance(plan)
        if state.step == SAVED and "load" not in case and "fp16" in case:
            checkpointer.save(state)
    if not engine.made_update():
        seen[-1]["found"] = engine.find_nonfinite()
    engine.close()
    (out / f"{case['name']}-{dist.get_rank()}.json").write_text(json.dumps(seen))


def main() -> None:
    warm_up()
    from deepspeed.accelerator import get_accelerator

    # DeepSpeed advises against fp16 on a CPU, which is slow at it and right: enough to see where the scale goes.
    get_accelerator().is_fp16_supported = lambda: True
    out, cases = Path(sys.argv[1]), json.loads(sys.argv[2])
    run_ranks(2, out / "ranks", cases, run_case)


if __name__ == "__main__":
    main()

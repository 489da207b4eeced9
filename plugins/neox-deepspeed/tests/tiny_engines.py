"""A model of three layers, and the engines that train it."""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from attrs import evolve
from neox_author.testing.outputs import WholeLogits
from neox_author.testing.plans import example_plan
from neox_deepspeed.api import build_engine
from neox_plain import api as plain
from torch import Tensor, nn

from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.runfile import ComponentRef, PrecisionPlan, RunPlan
from neox_core.run.optimizer import build_optimizer

ADAM = ComponentRef(
    "optimizer", "Adam", "neox-adam", "0.1.0", "neox_adam.optim:adam", "neox_adam.settings:AdamSettings"
)
CAUSAL_LM = ComponentRef("objective", "causal-lm", "neox-causal-lm", "0.1.0", "neox_causal_lm.objective:CausalLM")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "bf16+": torch.bfloat16, "fp16": torch.float16}
LRS = (0.01, 0.02, 0.005)
WEIGHT_DECAY = 0.1
CLIPPING = 0.3


class Tiny(nn.Module):
    draws, documents, sparse_weights = False, None, ()

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed = nn.Embedding(16, 8)
        self.norm: Any = nn.LayerNorm(8)
        self.norm.no_weight_decay = {"weight", "bias"}
        self.out = nn.Linear(8, 16, bias=False)
        self.factor = 1.0
        self.dropout = 0.0

    def forward(self, compute: Callable[[Any], Tensor], *, routing: None = None) -> Tensor:
        return compute(self.run) * self.factor

    def run(self, tokens: Tensor) -> WholeLogits:
        return WholeLogits(self.out(nn.functional.dropout(self.norm(self.embed(tokens)), self.dropout, self.training)))


def make_plan(
    dtype: str = "fp32", zero: int | str = 0, accumulation: int = 1, autocast: str | None = None, **train: Any
) -> RunPlan:
    """dtype "bf16+": bf16 with gradients added up in fp32, another optimizer of DeepSpeed's. zero "owned": stage 1 of
    whole parameters; "plain": the engine plain.
    """
    name = "plain" if zero == "plain" else "deepspeed"
    zero, owned = {"owned": (1, True), "plain": (0, False)}.get(str(zero)) or (int(zero), False)
    plan = example_plan(Path("unused"), ranks=(1,))
    engine: dict[str, Any] = {
        "train_batch_size": accumulation,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": CLIPPING,
        "zero_optimization": {"stage": zero},
        "zero_allow_untested_optimizer": True,
    }
    if dtype.startswith("bf16"):
        engine["bf16"] = {"enabled": True}
    if dtype == "fp16":
        scale = {"loss_scale": 0, "initial_scale_power": 10, "hysteresis": 1, "loss_scale_window": 1000}
        engine["fp16"] = {"enabled": True, **scale}
    if dtype == "bf16+":
        engine["data_types"] = {"grad_accum_dtype": "fp32"}
    return evolve(
        plan,
        engine_component=evolve(plan.engine_component, name=name),
        objective=CAUSAL_LM,
        optim=evolve(
            plan.optim,
            optimizer=ADAM,
            weight_decay=WEIGHT_DECAY,
            gradient_clipping=CLIPPING,
            zero_stage=zero,
            whole_parameters=owned,
        ),
        batch=evolve(plan.batch, gradient_accumulation=accumulation),
        precision=PrecisionPlan(dtype.rstrip("+"), autocast),
        train=evolve(plan.train, **train),
        engine=engine,
    )


def make_engine(plan: RunPlan, groups: Groups = Groups(None, None, 0, 1)) -> Any:  # noqa: B008 - it is frozen
    dtype = DTYPES[plan.precision.dtype]
    model = Tiny().to(dtype)
    context = BuildContext(torch.device("cpu"), dtype, groups, seed=1)
    build = plain.build_engine if plan.engine_component.name == "plain" else build_engine
    return build(plan, model, build_optimizer(plan.optim, model), context)


def batches(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(16, (2, 9), generator=generator) for _ in range(count)]


def close(engines: list[Any]) -> Any:
    """Close the one engine in a list, and let go of it. Returns the engine if only a collection would end it."""
    gc.collect()
    gc.disable()
    try:
        alive = weakref.ref(engines[0])
        engines.pop().close()
        return alive()
    finally:
        gc.enable()

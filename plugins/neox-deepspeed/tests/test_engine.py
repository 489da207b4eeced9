"""Both engines against plain torch loops, in one process: updates, clipping, accumulation, and gradients gone bad."""

from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from attrs import evolve
from neox_author.testing.outputs import WholeLogits
from neox_author.testing.plans import example_plan
from neox_deepspeed.api import build_engine
from neox_deepspeed.start import engine_config
from neox_plain import api as plain
from torch import Tensor, nn

from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.runfile import ComponentRef, PrecisionPlan, RunPlan
from neox_core.run.optimizer import build_optimizer, spared_from_decay

pytestmark = pytest.mark.usefixtures("process_group")

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


def make_engine(plan: RunPlan) -> Any:
    dtype = DTYPES[plan.precision.dtype]
    model = Tiny().to(dtype)
    context = BuildContext(torch.device("cpu"), dtype, Groups(None, None, 0, 1), seed=1)
    build = plain.build_engine if plan.engine_component.name == "plain" else build_engine
    return build(plan, model, build_optimizer(plan.optim, model), context)


def batches(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(16, (2, 9), generator=generator) for _ in range(count)]


def reference(
    dtype: torch.dtype, accumulation: int, autocast: bool, counts: Mapping[str, float] = MappingProxyType({})
) -> tuple[dict[str, Tensor], list[float], list[float]]:
    """Weights, losses and gradient norms of a loop in plain torch: fp32 masters, a model in `dtype`.

    counts: how often parameters count in the norm, by name, where that is not once.
    """
    model = Tiny().to(dtype)
    masters = {name: weight.detach().float().clone().requires_grad_() for name, weight in model.named_parameters()}
    spared = spared_from_decay(model)
    optimizer = torch.optim.AdamW(
        [
            {
                "params": [master for name, master in masters.items() if name not in spared],
                "weight_decay": WEIGHT_DECAY,
            },
            {"params": [master for name, master in masters.items() if name in spared], "weight_decay": 0.0},
        ]
    )
    stream, losses, norms = iter(batches(len(LRS) * accumulation)), [], []
    for lr in LRS:
        for group in optimizer.param_groups:
            group["lr"] = lr
        mean = 0.0
        for _ in range(accumulation):
            batch = next(stream)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = model.run(batch[:, :-1]).cross_entropy(batch[:, 1:])
            (loss / accumulation).backward()
            mean += float(loss.detach()) / accumulation
        losses.append(mean)
        gradients = {name: weight.grad.float() for name, weight in model.named_parameters()}
        squares = [counts.get(name, 1.0) * each.double().square().sum() for name, each in gradients.items()]
        norm = torch.stack(squares).sum().sqrt()
        norms.append(float(norm))
        for name in masters:
            masters[name].grad = gradients[name] * min(1.0, CLIPPING / (float(norm) + 1e-6))
        optimizer.step()
        optimizer.zero_grad()
        model.zero_grad()
        for name, weight in model.named_parameters():
            weight.data.copy_(masters[name])
    return {name: weight.detach() for name, weight in model.named_parameters()}, losses, norms


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize(
    ("dtype", "zero", "autocast"),
    [
        ("fp32", 0, None),
        ("fp32", 1, None),
        ("fp32", 0, "bf16"),
        ("bf16", 0, None),
        ("bf16", 1, None),
        ("fp32", "owned", "bf16"),
        ("bf16", "owned", None),
        ("fp32", "plain", None),
        ("fp32", "plain", "bf16"),
    ],
)
def test_equals_a_plain_loop(dtype: str, zero: int | str, autocast: str | None, accumulation: int) -> None:
    engine = make_engine(make_plan(dtype, zero, accumulation, autocast))
    assert engine.grad_norm() is None
    stream = iter(batches(len(LRS) * accumulation))
    losses, norms = [], []
    for lr in LRS:
        losses.append(float(engine.train_step(stream, lr)))
        norms.append(engine.grad_norm())
    weights, right_losses, right_norms = reference(DTYPES[dtype], accumulation, autocast is not None)
    exact = 1e-2 if dtype == "bf16" else 1e-6 if zero == "plain" else 1e-5
    assert losses == pytest.approx(right_losses, rel=exact)
    assert norms == pytest.approx(right_norms, rel=exact)
    assert min(norms) > CLIPPING  # so clipping was at work
    for name, weight in engine.model.named_parameters():
        torch.testing.assert_close(weight.detach(), weights[name], rtol=exact, atol=exact / 10, msg=name)
    assert engine.skipped_steps() == 0
    assert engine.loss_scale() is None


@pytest.mark.parametrize("zero", [0, "plain"])
def test_an_update_is_clipped_once(zero: int | str) -> None:
    """torch calls the hooks of an optimizer in each wrapped `step`, and wraps that of a parent once it is used."""
    torch.optim.Adam([nn.Parameter(torch.ones(1))])
    engine = make_engine(make_plan(zero=zero))
    engine.train_step(iter(batches(1)), 0.01)
    norm = engine.grad_norm()
    assert norm is not None
    assert norm > CLIPPING


@pytest.mark.parametrize("zero", [0, 1])
def test_fp16_equals_a_plain_loop_and_backs_off(zero: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed advises against fp16 on a CPU, which is slow at it and right: enough to see where the scale goes."""
    from deepspeed.accelerator import get_accelerator

    monkeypatch.setattr(get_accelerator(), "is_fp16_supported", lambda: True)
    engine = make_engine(make_plan("fp16", zero, accumulation=2))
    stream = iter(batches(2 * len(LRS) + 2))
    seen = [(float(engine.train_step(stream, lr)), engine.grad_norm()) for lr in LRS]
    weights, losses, norms = reference(torch.float16, 2, autocast=False)
    assert [loss for loss, _ in seen] == pytest.approx(losses, rel=1e-3)
    assert [norm for _, norm in seen] == pytest.approx(norms, rel=1e-3)
    for name, weight in engine.model.named_parameters():
        torch.testing.assert_close(weight.detach(), weights[name], rtol=1e-3, atol=1e-4, msg=name)
    assert engine.loss_scale() == 1024.0
    engine.model.factor = float("inf")
    engine.train_step(stream, 0.01)
    assert (engine.loss_scale(), engine.skipped_steps()) == (512.0, 1)


@pytest.mark.parametrize(
    ("dtype", "zero"),
    [
        *product(("fp32", "bf16"), (0, 1, 2, "owned")),
        ("fp32", "plain"),
        ("bf16+", 1),
        ("bf16+", 2),
        *product(["fp16"], (0, 1, 2)),
    ],
)
def test_the_norm_counts_parameters_as_often_as_asked(
    dtype: str, zero: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deepspeed.accelerator import get_accelerator

    monkeypatch.setattr(get_accelerator(), "is_fp16_supported", lambda: True)
    plan = make_plan(dtype, zero, accumulation=2)
    asked = [["embed.weight", 0.0], ["norm.*", 40.0], ["out.weight", 2.5]]
    engine = make_engine(evolve(plan, engine={**plan.engine, "gradient_norm_counts": asked}))
    stream = iter(batches(2 * len(LRS)))
    norms = []
    for lr in LRS:
        engine.train_step(stream, lr)
        norms.append(engine.grad_norm())
    counts = {"embed.weight": 0.0, "norm.weight": 40.0, "norm.bias": 40.0, "out.weight": 2.5}
    weights, _, right = reference(DTYPES[dtype], 2, autocast=False, counts=counts)
    exact = 1e-5 if dtype == "fp32" else 1e-2
    assert norms == pytest.approx(right, rel=exact)
    assert min(norms) > CLIPPING
    for name, weight in engine.model.named_parameters():
        torch.testing.assert_close(weight.detach(), weights[name], rtol=exact, atol=exact / 10, msg=name)


@pytest.mark.parametrize(("dtype", "zero"), [("fp32", 1), ("bf16", 0), ("bf16", 1), ("bf16+", 1), ("bf16", "owned")])
def test_masters_begin_as_the_weights(dtype: str, zero: int | str) -> None:
    """DeepSpeed has its optimizers allocate their state by a step, which would decay the masters."""
    engine = make_engine(make_plan(dtype, zero))
    weights = dict(engine.model.named_parameters())
    assert len(engine.shards) == 4
    for shard in engine.shards:
        weight = weights[shard.name].detach().float().reshape(-1)[shard.first : shard.first + shard.count]
        assert torch.equal(shard.part_of(shard.stepped), weight)
        assert shard.stepped.dtype == torch.float32


@pytest.mark.parametrize(("dtype", "zero"), [("fp32", "plain"), *product(("fp32", "bf16"), (0, 1, "owned"))])
@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_a_gradient_gone_bad_moves_no_weight(dtype: str, zero: int | str, policy: str) -> None:
    engine = make_engine(make_plan(dtype, zero, on_nonfinite_loss=policy))
    stream = iter(batches(5))
    engine.train_step(stream, 0.01)
    before = {name: weight.detach().clone() for name, weight in engine.model.named_parameters()}
    engine.model.factor = float("nan")
    assert not torch.isfinite(engine.train_step(stream, 0.01))
    assert engine.made_update() is False
    assert all(torch.equal(weight, before[name]) for name, weight in engine.model.named_parameters())
    assert engine.skipped_steps() == 1
    engine.model.factor = 1.0
    assert torch.isfinite(engine.train_step(stream, 0.01))
    moved = [not torch.equal(weight, before[name]) for name, weight in engine.model.named_parameters()]
    assert all(moved)
    assert engine.made_update() is True
    assert engine.skipped_steps() == 1


@pytest.mark.parametrize("zero", [0, "plain"])
def test_on_a_gpu_the_device_knows_that_an_update_was_bad(zero: int | str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(make_plan(zero=zero))
    monkeypatch.setattr(engine, "_looks", False)
    stream, seen = iter(batches(2)), []
    for factor in (1.0, float("nan")):
        engine.model.factor = factor
        engine.train_step(stream, 0.01)
        made = engine.made_update()
        assert isinstance(made, Tensor)
        seen.append(bool(made))
    assert seen == [True, False]


@pytest.mark.parametrize("zero", [0, "owned", "plain"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_on_a_gpu_the_parameter_of_the_first_bad_step_is_found(
    zero: int | str, accumulation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without repeating the step, whose weights are spoilt; the next steps are bad in all parameters."""
    engine = make_engine(make_plan(zero=zero, accumulation=accumulation))
    monkeypatch.setattr(engine, "_looks", False)
    stream, step = iter(batches(4 * accumulation)), 0

    def spoil(norm: nn.Module, arguments: Any, out: Tensor) -> None:
        if step == 2:
            out.register_hook(lambda gradient: gradient * float("inf"))

    engine.model.norm.register_forward_hook(spoil)
    assert engine.find_nonfinite() == []
    for step in range(4):
        engine.train_step(stream, 0.01)
        assert step != 1 or engine.find_nonfinite() == []
    assert engine.find_nonfinite() == ["norm.bias", "norm.weight", "embed.weight"]


SPOILT = 15
"""A first token that makes the gradient of what the norm returns infinite."""


@pytest.mark.parametrize(
    ("dtype", "zero"),
    [
        ("fp32", 0),
        ("fp32", 1),
        ("fp32", 3),
        ("bf16", 1),
        ("fp16", 0),
        ("fp16", 1),
        ("fp32", "owned"),
        ("fp32", "plain"),
    ],
)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_parameter_whose_gradient_is_not_finite_is_found(
    dtype: str, zero: int | str, accumulation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the batches of the first step that was left out: those of the second would blame the output layer."""
    from deepspeed.accelerator import get_accelerator

    monkeypatch.setattr(get_accelerator(), "is_fp16_supported", lambda: True)
    monkeypatch.setattr(nn.functional, "linear", nn.functional.linear)  # ZeRO 3 replaces it for the whole process
    engine = make_engine(make_plan(dtype, zero, accumulation, on_nonfinite_loss="skip"))
    spoilt = False

    def look(embed: nn.Module, arguments: tuple[Tensor]) -> None:
        nonlocal spoilt
        spoilt = bool(arguments[0][0, 0] == SPOILT)

    def spoil(norm: nn.Module, arguments: Any, out: Tensor) -> None:
        if spoilt:
            out.register_hook(lambda gradient: gradient * float("inf"))

    engine.model.embed.register_forward_pre_hook(look)
    engine.model.norm.register_forward_hook(spoil)
    made = []
    for step, batch in enumerate(batches(3)):
        batch[0, 0] = SPOILT if step == 1 else 0
        engine.model.factor = float("nan") if step == 2 else 1.0
        engine.train_step(iter([torch.zeros_like(batch)] * (accumulation - 1) + [batch]), 0.01)
        made.append(engine.made_update())
    engine.model.factor = 1.0
    assert made == [True, False, False]
    found = engine.find_nonfinite()
    assert sorted(found) == ["embed.weight", "norm.bias", "norm.weight"]
    assert found[-1] == "embed.weight", "the backward pass comes to it last"


def test_deepspeed_only_averages_where_ranks_own_parameters() -> None:
    plan = make_plan("bf16", "owned")
    config = engine_config(plan)
    assert config["zero_optimization"]["stage"] == 0
    assert (config["communication_data_type"], config["gradient_clipping"]) == ("bf16", 0.0)
    assert "bf16" not in config
    config = engine_config(evolve(plan, engine={**plan.engine, "communication_data_type": "fp32"}))
    assert config["communication_data_type"] == "fp32"


@pytest.mark.parametrize("zero", [0, "plain"])
def test_evaluation_is_calm_and_changes_nothing(zero: int | str) -> None:
    engine = make_engine(make_plan(zero=zero))
    engine.model.dropout = 0.5
    state = torch.get_rng_state()
    first, second = engine.evaluate(batches(2)), engine.evaluate(batches(2))
    assert [float(loss) for loss in first] == [float(loss) for loss in second]
    assert not first[0].requires_grad
    assert torch.equal(torch.get_rng_state(), state)
    assert engine.model.training


def test_the_engine_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Not through its logger, not past it."""
    engine = make_engine(make_plan("bf16+", 1))
    engine.train_step(iter(batches(1)), 0.01)
    assert capfd.readouterr() == ("", "")

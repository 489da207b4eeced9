"""Runs with experts: their keys, what the log has, recomputation, resuming, and one expert against the MLP."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from neox_gpt.api import build_model, parameter_shapes
from neox_gpt.config.memory import on_fullest_rank
from neox_plain.api import build_engine
from torch import Tensor

from neox_core.checkpoint.checkpointer import Checkpointer
from neox_core.errors import NeoxError
from neox_core.hooks.loader import load_plugins
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.resolve import prepare_run
from neox_core.plan.stored.state import TrainState
from neox_core.run.optimizer import build_optimizer

CONFIG = """
num-layers: 3
hidden-size: 32
num-attention-heads: 4
activation: swiglu
intermediate-size: 48
norm: rmsnorm
pos-emb: rotary
use-bias-in-mlp: false
max-position-embeddings: 16
seq-length: 16
data-path: none
data-impl: mmap
padded-vocab-size: 64
train-iters: 4
train_micro_batch_size_per_gpu: 4
hidden-dropout: 0.1
attention-dropout: 0
engine: plain
device: cpu
optimizer: {type: Adam, params: {lr: 1e-2}}
"""
SPREAD = ("moe_num_experts=4", "moe_expert_parallel_size=2")
MIXED = ("mlp-type=[[[moe, regular], 1], [[moe], 1]]", "moe-num-experts=4", "moe-top-k=2", "moe-router-type=topk")
CONTEXT = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1)
TOKENS = torch.arange(64).view(4, 16)


@pytest.fixture
def resolve(tmp_path: Path) -> Callable[..., Any]:
    def _resolve(*sets: str) -> Any:
        (tmp_path / "c.yml").write_text(CONFIG)
        return prepare_run([tmp_path / "c.yml"], sets, catalog=load_plugins(), start=False)

    return _resolve


def types(resolved: Any) -> list[str]:
    model = resolved.plan.model
    return [model.feed_forward(layer).name for layer in range(3)]


def notes(resolved: Any) -> str:
    return "\n".join(f"{each.key}: {each.message}" for each in resolved.notes)


@pytest.mark.parametrize(
    ("sets", "wanted"),
    [
        (("moe_num_experts=4",), ["moe"] * 3),
        (("moe_num_experts=4", "moe_expert_interval=2"), ["moe", "regular", "moe"]),
        (("moe_num_experts=4", "moe_expert_interval=3"), ["moe", "regular", "regular"]),
        (("moe_num_experts=4", "expert_interval=5", "mlp_type=regular"), ["moe", "regular", "regular"]),
        (("moe_num_experts=1", "moe_expert_interval=2", "moe_top_k=1"), ["regular"] * 3),
        (("mlp-type=moe", "moe_num_experts=4"), ["moe"] * 3),
    ],
)
def test_a_file_of_gpt_neox_has_experts_where_gpt_neox_has_them(
    resolve: Callable[..., Any], sets: tuple[str, ...], wanted: list[str]
) -> None:
    resolved = resolve(*sets)
    assert types(resolved) == wanted
    assert (resolved.plan.model.feed_forwards is not None) == ("moe" in wanted)
    if "moe" in wanted:
        assert resolved.plan.model.feed_forward(0).settings["moe_num_experts"] == 4


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("moe_lbl_in_fp32=true", "moe_lbl_in_fp32: has no effect any more: all losses of a router are in fp32"),
        ("moe_token_dropping=true", "moe_token_dropping: is the old spelling of moe-train-capacity-factor: 1.0"),
        ("moe_train_capacity_factor=4", "moe_train_capacity_factor: drops nothing"),
        ("use_bias_in_mlp=true", "use_bias_in_mlp: gives experts no biases"),
        ("moe_glu=false", "moe_glu: has no effect any more"),
    ],
)
def test_what_a_key_of_gpt_neox_means_is_noted(resolve: Callable[..., Any], key: str, said: str) -> None:
    resolved = resolve("moe_num_experts=4", key)
    assert said in notes(resolved)
    factor = resolved.plan.model.feed_forward(0).settings.get("moe_train_capacity_factor")
    assert factor == {"moe_token_dropping=true": 1.0, "moe_train_capacity_factor=4": 4.0}.get(key)


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (
            ("moe_num_experts=4", "moe_jitter_eps=0.01"),
            "moe_jitter_eps: cannot be 0.01: a feed-forward draws no random",
        ),
        (("moe_num_experts=4", "moe_expert_parallel_size=2"), "over 2 data-parallel ranks, and there are 1"),
        (
            ("moe_num_experts=4", "moe_expert_parallel_size=3", "num-gpus=3"),
            "4 experts cannot be spread equally over 3 ranks",
        ),
        ((*SPREAD, "num-gpus=4", "model-parallel-size=2"), "excludes tensor and pipeline parallelism"),
        (("moe_num_experts=4", "moe_top_k=5"), "moe_top_k: 5 is more than moe-num-experts 4"),
        (("moe_num_experts=4", "moe_normalize_expert_weights=true"), "makes every weight 1 with moe-top-k: 1"),
        (("moe_num_experts=4", "moe_expert_interval=0"), "moe_expert_interval: must be a whole number above 0"),
        (("moe_num_experts=4", "mlp-type=moe", "moe_expert_interval=2"), "mlp-type says which layers have experts"),
        (("moe_num_experts=4", "moe_router_type=switch"), "moe_router_type: must be one of 'sinkhorn', 'topk'"),
        (("moe_num_experts=0", "mlp-type=moe"), "moe_num_experts: must be"),
        (("moe_num_experts=4", "moe_loss_coeff=-1"), "moe_loss_coeff: must be"),
        (("moe_top_k=2",), "moe_top_k"),
        (("moe_num_experts=4", "intermediate-size=47", "model-parallel-size=2", "num-gpus=2"), "47"),
    ],
)
def test_what_cannot_be_is_refused(resolve: Callable[..., Any], sets: tuple[str, ...], said: str) -> None:
    with pytest.raises(NeoxError) as caught:
        resolve(*sets)
    assert said.replace("_", "-") in str(caught.value).replace("_", "-")


def test_the_planner_tells_all_parameters(resolve: Callable[..., Any]) -> None:
    resolved = resolve(*MIXED)
    assert parameter_shapes(resolved.plan.model, 64) == dict(resolved.size.shapes)
    assert resolved.size.shapes["layers.0.mlp.up.weight"] == (4, 2, 48, 32)


def test_spread_experts_take_their_share_of_the_memory(resolve: Callable[..., Any]) -> None:
    whole, spread = (
        resolve(*MIXED, f"moe_expert_parallel_size={ranks}", "num-gpus=2", "train_batch_size=8") for ranks in (1, 2)
    )
    held = [on_fullest_rank(each.plan, each.plan.model, each.size) for each in (whole, spread)]
    assert {name for name in held[0] if held[0][name] != held[1][name]} == {
        f"layers.{layer}.mlp.{part}.weight" for layer in (0, 2) for part in ("up", "down")
    }
    assert held[1]["layers.0.mlp.up.weight"] == (2, 2, 48, 32)


@pytest.mark.parametrize("method", ["xavier_uniform", "normal"])
def test_each_expert_is_drawn_as_a_matrix_of_its_own(resolve: Callable[..., Any], method: str) -> None:
    plan = resolve(*MIXED, f"init-method={method}").plan
    up = dict(build_model(plan.model, 64, CONTEXT).named_parameters())["layers.0.mlp.up.weight"]
    wanted = (2 / (32 + 96)) ** 0.5 if method == "xavier_uniform" else 0.02
    assert up.flatten(1).std(1).tolist() == pytest.approx([wanted] * 4, rel=0.05)
    assert not torch.equal(up[0], up[1])


def test_one_expert_is_the_model_without_experts_to_the_bit(resolve: Callable[..., Any]) -> None:
    ours, plain = (build_model(resolve(*sets).plan.model, 64, CONTEXT).eval() for sets in (("mlp-type=moe",), ()))
    assert list(ours.state_dict()) == list(plain.state_dict())
    losses = []
    for model in (ours, plain):
        loss = model.loss(TOKENS, TOKENS.flip(0))
        loss.backward()
        losses.append([loss, *(each.grad for each in model.parameters())])
    assert all(map(torch.equal, *losses))


def test_a_compiled_layer_gives_the_same(resolve: Callable[..., Any]) -> None:
    plan, losses = resolve(*MIXED, "hidden-dropout=0").plan.model, []
    for compiled in (False, True):
        model = build_model(evolve(plan, compile=compiled), 64, CONTEXT, backend="aot_eager")
        loss = model.loss(TOKENS, TOKENS.flip(0))
        loss.backward()
        losses.append([loss, *(each.grad for each in model.parameters())])
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-6)


def trained(plan: Any, steps: int = 4, save_at: int | None = None) -> tuple[dict[str, Tensor], list[Any]]:
    """The weights after the steps that the plan has left, and what the engine measured in the last one."""
    model = build_model(plan.model, 64, CONTEXT)
    engine = build_engine(plan, model, build_optimizer(plan.optim, model), CONTEXT)
    checkpointer = Checkpointer(plan, engine, CONTEXT)
    state: TrainState = checkpointer.load().state
    losses = []
    while state.step < steps:
        tokens = torch.randint(64, (4, 17), generator=torch.Generator().manual_seed(state.step))
        losses.append(engine.train_step(iter([tokens]), 0.05).clone())
        state.advance(plan)
        if state.step == save_at:
            checkpointer.save(state)
    engine.close()
    return {name: each.detach().clone() for name, each in model.named_parameters()}, losses


@pytest.mark.parametrize("router", ["topk", "sinkhorn"])
def test_recomputing_routes_in_the_same_way_and_a_resumed_run_goes_on_to_the_bit(
    resolve: Callable[..., Any], tmp_path: Path, router: str
) -> None:
    sets = (*MIXED[:3], f"moe-router-type={router}", "moe-z-loss-coeff=0.01", "moe-train-capacity-factor=1.0")
    kept, losses = trained(
        resolve(*sets, f"save={tmp_path}/kept", "save-interval=2", "checkpoint-activations=false").plan, save_at=2
    )
    again, others = trained(resolve(*sets, "checkpoint-activations=true").plan)
    assert losses == others
    assert all(torch.equal(kept[name], again[name]) for name in kept)
    assert kept["layers.0.mlp.router.weight"].std() > 0.02
    resumed, _ = trained(resolve(*sets, f"load={tmp_path}/kept").plan)
    assert all(torch.equal(kept[name], resumed[name]) for name in kept)

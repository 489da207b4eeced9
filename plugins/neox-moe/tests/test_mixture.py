"""A mixture against sums that are written out expert by expert, and its parts against papers and other libraries."""

from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve
from neox_author.testing import assert_light, load_only
from neox_gpt.api import MLP, FeedForwardShape
from neox_gpt.testing import check_feed_forward
from neox_moe.dispatch import dispatch
from neox_moe.layer import MixtureOfExperts, mixture
from neox_moe.routing import ROUNDS, SMALL, TOLERANCE, assignment, load_balance, z_loss
from neox_moe.settings import MoESettings
from torch import Tensor
from torch.nn import functional as F
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from neox_core.parallel.tensor import ALONE

SHAPE = FeedForwardShape(16, 24, bias=False, gated=True)
TOPK: dict[str, Any] = {"moe_num_experts": 4, "moe_top_k": 2, "moe_router_type": "topk"}
SETTINGS: dict[str, dict[str, Any]] = {
    "one expert": {},
    "topk": TOPK,
    "mixtral": {**TOPK, "moe_normalize_expert_weights": True, "moe_loss_coeff": 0.02, "moe_z_loss_coeff": 0.01},
    "sinkhorn": {"moe_num_experts": 3},
    "sinkhorn, two experts a token": {"moe_num_experts": 3, "moe_top_k": 2},
    "capacity": {**TOPK, "moe_train_capacity_factor": 0.7},
}


class SwiGLU:
    gated = True

    def __call__(self, x: Tensor) -> Tensor:
        value, gate = x.chunk(2, -1)
        return value * F.silu(gate)


def made(shape: FeedForwardShape = SHAPE, *, dtype: torch.dtype = torch.float64, **settings: Any) -> Any:
    layer = mixture(shape, SwiGLU(), ALONE, MoESettings(**settings))
    for place, parameter in enumerate(layer.parameters()):
        drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(place), dtype=torch.float64)
        parameter.data = (0.3 * drawn).to(dtype)
    return layer


def tokens(*size: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(9), dtype=torch.float64).to(dtype)


def by_hand(layer: Any, x: Tensor, experts: Tensor, weights: Tensor) -> Tensor:
    """The sum over the experts of each token, one after the other."""
    up, down = layer.up.weight.flatten(1, 2), layer.down.weight
    rows = []
    for row, chosen, each in zip(x.flatten(0, 1), experts, weights, strict=True):
        parts = [(up[e] @ row, down[e], w) for e, w in zip(chosen, each, strict=True)]
        rows.append(sum(w * (d @ (inner[:24] * F.silu(inner[24:]))) for inner, d, w in parts))
    return torch.stack(rows).view_as(x)


def test_listing_is_light() -> None:
    assert_light("neox-moe")


@pytest.mark.parametrize("name", SETTINGS)
def test_it_keeps_the_contract(name: str) -> None:
    check_feed_forward(load_only("neox-moe", "neox-gpt"), "moe", **SETTINGS[name])


@pytest.mark.parametrize("name", ["topk", "mixtral"])
def test_it_is_the_weighted_sum_of_the_most_probable_experts(name: str) -> None:
    layer, x = made(**SETTINGS[name]), tokens(2, 5, 16)
    probabilities = (x.flatten(0, 1) @ layer.router.weight.T).softmax(-1)
    weights, experts = probabilities.sort(-1, descending=True)
    weights, experts = weights[:, :2], experts[:, :2]
    if name == "mixtral":
        weights = weights / weights.sum(-1, keepdim=True)
    found, numbers = layer(x)
    torch.testing.assert_close(found, by_hand(layer, x, experts, weights))
    most = max(int((experts == e).sum()) for e in range(4))
    assert float(numbers["busiest_expert"]) == pytest.approx(most / (20 / 4))
    assert float(numbers["dropped_tokens"]) == 0


@pytest.mark.parametrize("k", [1, 2])
def test_sinkhorn_chooses_together_in_training_and_by_probability_in_evaluation(k: int) -> None:
    layer, x = made(moe_num_experts=3, moe_top_k=k), tokens(2, 30, 16) + 1  # not even: a common part
    logits = x.flatten(0, 1) @ layer.router.weight.T
    scores = logits.sigmoid() if k == 1 else logits.softmax(-1)
    balanced = assignment(logits).topk(k).indices
    own = scores.topk(k).indices
    assert not torch.equal(balanced, own)
    for training, experts in ((True, balanced), (False, own)):
        found, _ = layer.train(training)(x)
        torch.testing.assert_close(found, by_hand(layer, x, experts, scores.gather(-1, experts)))
    assert dispatch(balanced, 3).counts.max() < dispatch(own, 3).counts.max()


@pytest.mark.parametrize(("shift", "last"), [(0.0, 1), (-14.0, ROUNDS)])
def test_assignment_is_sinkhorns_algorithm_with_the_early_end_of_gpt_neox(shift: float, last: int) -> None:
    logits = tokens(50, 6) + shift
    cost = np.exp(logits.numpy())
    of_tokens, of_experts, rounds = np.ones(50), 1 / (6 * cost.sum(0)), 0
    while rounds < ROUNDS:
        rounds += 1
        of_tokens = 1 / 50 / (cost @ of_experts + SMALL)
        before, of_experts = of_experts, 1 / 6 / (of_tokens @ cost + SMALL)
        if np.abs(before - of_experts).mean() < TOLERANCE:
            break
    assert rounds == last
    torch.testing.assert_close(
        assignment(logits), torch.from_numpy(of_tokens[:, None] * cost * of_experts), rtol=1e-9, atol=0
    )
    assert assignment(tokens(50, 6) * 1e4).isfinite().all()


def test_an_expert_takes_its_first_tokens_and_drops_the_rest() -> None:
    layer, x = made(**SETTINGS["capacity"]), tokens(2, 5, 16)
    weights, experts = (x.flatten(0, 1) @ layer.router.weight.T).softmax(-1).topk(2)
    room, dropped = dict.fromkeys(range(4), 4), 0  # ceil(0.7 * 10 * 2 / 4)
    weights = weights.clone()
    for token, place in np.ndindex(10, 2):
        expert = int(experts[token, place])
        if not room[expert]:
            weights[token, place] = 0
            dropped += 1
        room[expert] -= bool(room[expert])
    found, numbers = layer(x)
    assert dropped > 1
    assert float(numbers["dropped_tokens"]) == pytest.approx(dropped / 20)
    torch.testing.assert_close(found, by_hand(layer, x, experts, weights))
    whole, numbers = layer.eval()(x)
    assert float(numbers["dropped_tokens"]) == 0
    torch.testing.assert_close(whole, made(**TOPK)(x)[0])


def test_losses_are_those_of_the_papers_and_of_transformers() -> None:
    logits = tokens(40, 5)
    for k in (1, 2):
        experts = logits.topk(k).indices
        probability = logits.softmax(-1)
        shares = [float((experts == e).sum()) / 40 for e in range(5)]
        wanted = 5 * sum(share * float(probability[:, e].mean()) for e, share in enumerate(shares))
        assert float(load_balance(logits, experts)) == pytest.approx(wanted, rel=1e-12)
        theirs = load_balancing_loss_func((logits.float(),), 5, k)
        assert float(load_balance(logits.float(), experts)) == pytest.approx(float(theirs), rel=1e-6)
    even = torch.eye(5, dtype=torch.float64).repeat(8, 1)
    assert float(load_balance(even, even.topk(1).indices)) == pytest.approx(1)
    assert float(z_loss(logits)) == pytest.approx(float((logits.exp().sum(-1).log() ** 2).mean()), rel=1e-12)
    _, numbers = made(**SETTINGS["mixtral"])(x := tokens(2, 5, 16))
    given = x.flatten(0, 1) @ made(**SETTINGS["mixtral"]).router.weight.detach().T
    assert float(numbers["load_balance"]) == pytest.approx(float(0.02 * load_balance(given, given.topk(2).indices)))
    assert float(numbers["router_z"]) == pytest.approx(float(0.01 * z_loss(given)))


def test_a_loss_without_a_coefficient_is_not_there() -> None:
    assert made(**TOPK).auxiliary_losses == ("load_balance",)
    assert made(moe_num_experts=3).auxiliary_losses == ()
    assert made(**TOPK, moe_loss_coeff=0.0, moe_z_loss_coeff=1e-3).auxiliary_losses == ("router_z",)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_expert_is_the_mlp_to_the_bit(dtype: torch.dtype) -> None:
    """The path through sorting and grouped products, with a router that can only give 1; and what a config gets."""
    settings = MoESettings(moe_router_type="topk", moe_loss_coeff=0.0)
    mixed = MixtureOfExperts(SHAPE, SwiGLU(), ALONE, settings).to(dtype)
    plain = MLP(SHAPE, SwiGLU()).to(dtype)
    for name in ("up", "down"):
        drawn = 0.3 * tokens(*getattr(plain, name).weight.shape, dtype=dtype)
        getattr(plain, name).weight.data = drawn
        getattr(mixed, name).weight.data = drawn.view_as(getattr(mixed, name).weight).clone()
    mixed.router.weight.data = tokens(1, 16, dtype=dtype)
    results, x = [], tokens(3, 32, 16, dtype=dtype)
    for layer in (mixed, plain):
        given = x.clone().requires_grad_()
        found = layer(given)
        found = found[0] if isinstance(found, tuple) else found
        (found * tokens(3, 32, 16, dtype=dtype).flip(0)).sum().backward()
        results.append([found, given.grad, layer.up.weight.grad.view(48, 16), layer.down.weight.grad.view(16, 24)])
    assert all(map(torch.equal, *results))
    assert isinstance(made(), MLP)
    assert [name for name, _ in made(evolve(SHAPE, bias=True)).named_parameters()] == [
        "up.weight",
        "up.bias",
        "down.weight",
        "down.bias",
    ]


def test_flops_count_the_experts_that_a_token_is_sent_to() -> None:
    assert made(**TOPK).flops_per_token == 6 * (4 * 16 + 2 * 3 * 16 * 24)
    wide = made(**{**TOPK, "moe_num_experts": 64})
    assert wide.flops_per_token - made(**TOPK).flops_per_token == 6 * 60 * 16


def test_no_token_and_experts_without_tokens() -> None:
    layer, x = made(**TOPK), tokens(1, 1, 16).requires_grad_()
    layer(x)[0].sum().backward()
    used = layer.up.weight.grad.flatten(1).abs().sum(1) > 0
    assert int(used.sum()) == 2
    assert layer(tokens(1, 0, 16))[0].shape == (1, 0, 16)

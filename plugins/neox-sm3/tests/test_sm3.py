from itertools import product
from math import sqrt
from typing import Any

import pytest
import torch
from neox_author.testing import assert_light, build, check_optimizer, load_only
from neox_kernels.compile_c import native
from neox_sm3.optim import SOURCE
from torch import Tensor

from neox_core.errors import ConfigError
from neox_core.hooks.registry import Entry

LR, DECAY, EPS = 0.1, 0.05, 1e-2
SHAPES = ((5, 7), (6,), (3, 2, 4))


@pytest.fixture
def entry() -> Entry:
    return load_only("neox-sm3").find("optimizer", "SM3")


def test_listing_imports_no_torch() -> None:
    assert_light("neox-sm3")


@pytest.mark.parametrize("settings", [{}, {"fused": False}, {"momentum": 0.5, "beta": 0.9}])
def test_optimizer_contract(settings: dict[str, Any]) -> None:
    check_optimizer(load_only("neox-sm3"), "SM3", lr=LR, **settings)


class Paper:
    """Algorithm SM3-II over sets of elements, a Python float at a time.

    The sets are the slices along each axis. With beta, which the paper does not have, the sums are means that forget,
    and a bound keeps its largest so far.
    """

    def __init__(self, start: Tensor, momentum: float, beta: float, decay: float) -> None:
        self.shape = tuple(start.shape)
        self.weight = {place: float(start[place]) for place in product(*map(range, self.shape))}
        self.step_before = dict.fromkeys(self.weight, 0.0)
        self.bound = {(axis, index): 0.0 for axis, length in enumerate(self.shape) for index in range(length)}
        self.momentum, self.beta, self.decay = momentum, beta, decay

    def step(self, grad: Tensor, lr: float) -> None:
        grown = dict(self.bound) if self.beta else dict.fromkeys(self.bound, 0.0)
        for place in self.weight:
            slope, cover = float(grad[place]), list(enumerate(place))
            estimate = min(self.bound[each] for each in cover)
            estimate = self.beta * estimate + (1 - self.beta) * slope**2 if self.beta else estimate + slope**2
            for each in cover:
                grown[each] = max(grown[each], estimate)
            step = self.momentum * self.step_before[place] + (1 - self.momentum) * slope / sqrt(estimate + EPS)
            self.step_before[place] = step
            self.weight[place] = self.weight[place] * (1 - lr * self.decay) - lr * step
        self.bound = grown

    def weights(self) -> Tensor:
        return torch.tensor(list(self.weight.values()), dtype=torch.float64).view(self.shape)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("momentum", "beta"), [(0.0, 0.0), (0.9, 0.0), (0.8, 0.95)])
def test_50_steps_equal_the_paper_in_float64(
    entry: Entry, monkeypatch: pytest.MonkeyPatch, momentum: float, beta: float, fused: bool
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)  # each of one or two rows
    assert native(SOURCE) is not None
    generator = torch.Generator().manual_seed(7)
    weights = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
    papers = [
        Paper(weight.detach(), momentum, beta, decay) for weight, decay in zip(weights, (DECAY, 0, 0), strict=True)
    ]
    groups = [
        {"params": weights[:1], "weight_decay": DECAY},
        {"params": weights[1:], "weight_decay": 0.0, "lr": 3 * LR},
    ]
    optimizer = entry.load()(groups, build(entry, lr=LR, momentum=momentum, beta=beta, eps=EPS, fused=fused))
    for step in range(50):
        for weight, paper, lr in zip(weights, papers, (LR, 3 * LR, 3 * LR), strict=True):
            weight.grad = torch.randn(weight.shape, generator=generator) * (1 + step % 7)
            weight.grad[weight.grad.abs() < 0.3] = 0.0  # elements that have not moved yet: 0 / 0 is 0
            paper.step(weight.grad, lr)
        optimizer.step()
    for weight, paper in zip(weights, papers, strict=True):
        torch.testing.assert_close(weight.detach().double(), paper.weights(), rtol=2e-5, atol=2e-5)


def count(optimizer: torch.optim.Optimizer, weight: Tensor) -> int:
    return sum(value.numel() for value in optimizer.state[weight].values())


@pytest.mark.parametrize(("momentum", "numbers"), [(0.0, 300 + 70), (0.9, 300 + 70 + 300 * 70)])
def test_a_matrix_keeps_a_number_for_each_row_and_column(entry: Entry, momentum: float, numbers: int) -> None:
    weight = torch.nn.Parameter(torch.ones(300, 70))
    optimizer = entry.load()([{"params": [weight]}], build(entry, momentum=momentum))
    weight.grad = torch.ones(300, 70)
    optimizer.step()
    assert count(optimizer, weight) == numbers
    assert all(value.dtype == torch.float32 for value in optimizer.state[weight].values())


def test_a_gradient_whose_square_is_no_number_moves_little(entry: Entry) -> None:
    """1e-25 squared is 0 in single precision."""
    weight = torch.nn.Parameter(torch.ones(2, 3))
    optimizer = entry.load()([{"params": [weight]}], build(entry, lr=1.0))
    weight.grad = torch.full((2, 3), 1e-25)
    optimizer.step()
    assert torch.equal(weight.detach(), torch.ones(2, 3))


def test_what_it_declares_is_in_the_rules(entry: Entry) -> None:
    declared = entry.component
    assert (declared.zero_stages, declared.whole_parameters, declared.precisions) == ((0, 1), True, ("fp32", "bf16"))


def test_bad_settings_are_reported_together(entry: Entry) -> None:
    settings: dict[str, Any] = {"lr": -1.0, "momentum": 1.0, "beta": -0.1, "eps": 0.0}
    with pytest.raises(ConfigError, match=r"(?s)params\.lr.*params\.momentum.*params\.beta.*params\.eps"):
        build(entry, **settings)

from math import sqrt
from typing import Any

import pytest
import torch
from neox_author.testing import assert_light, build, check_optimizer, load_only
from torch import Tensor

from neox_core.errors import ConfigError
from neox_core.hooks.registry import Entry

LR, DECAY, MU, EPS = 0.02, 0.3, 0.9, 0.1


@pytest.fixture
def entry() -> Entry:
    return load_only("neox-muon").find("optimizer", "Muon")


def test_listing_imports_no_torch() -> None:
    assert_light("neox-muon")


@pytest.mark.parametrize("settings", [{}, {"nesterov": False, "adjust_lr": "original"}])
def test_optimizer_contract(settings: dict[str, str]) -> None:
    check_optimizer(load_only("neox-muon"), "Muon", lr=0.05, **settings)


def singular_values_moved(matrix: Tensor, steps: int) -> Tensor:
    """What the quintic of Jordan's post makes of a matrix, by its singular values: a s + b s^3 + c s^5 of each."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = values / matrix.norm()
    for _ in range(steps):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left @ torch.diag(values) @ right


@pytest.mark.parametrize(
    ("nesterov", "scale"), [(True, "match_rms_adamw"), (False, "original")], ids=["nesterov, rms", "plain, original"]
)
def test_50_steps_equal_the_paper_in_float64(entry: Entry, nesterov: bool, scale: str) -> None:
    """Momentum, five iterations and the scale by shape of arXiv:2502.16982; the iterations are in bfloat16."""
    generator = torch.Generator().manual_seed(3)
    shapes = [(12, 8), (6, 20), (40,)]
    weights = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    expected = [weight.detach().double() for weight in weights]
    start = [each.clone() for each in expected]
    settings = build(
        entry, lr=LR, momentum=MU, nesterov=nesterov, adjust_lr=scale, betas=(0.8, 0.95), eps=EPS, weight_decay=DECAY
    )
    optimizer = entry.load()([{"params": weights[:2]}, {"params": weights[2:], "weight_decay": 0.0}], settings)
    momentum = [torch.zeros_like(each) for each in expected]
    second = torch.zeros_like(expected[2])
    for step in range(1, 51):
        for index, weight in enumerate(weights):
            weight.grad = torch.randn(weight.shape, generator=generator)
            g = weight.grad.double()
            if weight.ndim == 2:
                momentum[index] = MU * momentum[index] + (1 - MU) * g
                update = MU * momentum[index] + (1 - MU) * g if nesterov else momentum[index]
                rows, columns = weight.shape
                factor = 0.2 * sqrt(max(rows, columns)) if scale == "match_rms_adamw" else sqrt(max(1, rows / columns))
                moved = factor * singular_values_moved(update, 5)
                expected[index] = expected[index] * (1 - LR * DECAY) - LR * moved
            else:
                momentum[index] = 0.8 * momentum[index] + 0.2 * g
                second = 0.95 * second + 0.05 * g**2
                corrected = (second / (1 - 0.95**step)).sqrt() + EPS
                expected[index] = expected[index] - LR * momentum[index] / (1 - 0.8**step) / corrected
        optimizer.step()
    for weight, right, first, tolerance in zip(weights, expected, start, (0.01, 0.01, 1e-5), strict=True):
        way = (right - first).norm()
        assert float((weight.detach().double() - right).norm() / way) < tolerance


def test_tables_and_vectors_are_left_to_adamw(entry: Entry) -> None:
    weights: dict[str, Any] = {name: torch.nn.Parameter(torch.randn(4, 3)) for name in ("matrix", "table")}
    weights["vector"] = torch.nn.Parameter(torch.randn(5))
    weights["table"].is_table = True
    optimizer = entry.load()([{"params": list(weights.values())}], build(entry))
    for weight in weights.values():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    held = {name: set(optimizer.state[weight]) for name, weight in weights.items()}
    adamw = {"step", "exp_avg", "exp_avg_sq"}
    assert held == {"matrix": {"momentum_buffer"}, "table": adamw, "vector": adamw}


@pytest.mark.parametrize(("is_table", "numbers"), [(False, 1), (True, 2)])
def test_state_is_no_more_than_declared(entry: Entry, is_table: bool, numbers: int) -> None:
    weight: Any = torch.nn.Parameter(torch.ones(300, 70))
    weight.is_table = is_table
    optimizer = entry.load()([weight], build(entry))
    weight.grad = torch.ones(300, 70)
    optimizer.step()
    held = [value for value in optimizer.state[weight].values() if value.ndim]
    assert sum(value.numel() for value in held) == numbers * 300 * 70
    assert entry.component.state_numbers == (2, 0)


def test_bad_settings_are_reported_together(entry: Entry) -> None:
    with pytest.raises(ConfigError, match=r"(?s)params\.lr.*params\.momentum.*params\.ns_steps"):
        build(entry, lr=-1.0, momentum=1.0, ns_steps=0)

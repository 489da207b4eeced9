from math import sqrt

import pytest
import torch
from neox_author.testing import assert_light, build, check_optimizer, load_only
from neox_kernels.compile_c import native
from neox_lamb.optim import SOURCE

from neox_core.errors import ConfigError
from neox_core.hooks.registry import Entry

BETAS, EPS, LR, DECAY = (0.8, 0.95), 1e-6, 0.05, 0.1


@pytest.fixture
def entry() -> Entry:
    return load_only("neox-lamb").find("optimizer", "Lamb")


def test_listing_imports_no_torch() -> None:
    assert_light("neox-lamb")


@pytest.mark.parametrize("settings", [{}, {"fused": False}, {"bias_correction": False, "max_coeff": 0.5}])
def test_optimizer_contract(settings: dict[str, float]) -> None:
    check_optimizer(load_only("neox-lamb"), "Lamb", lr=LR, **settings)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(
    ("corrected", "bounds"), [(True, (0.01, 10.0)), (False, (0.01, 10.0)), (True, (0.9, 1.1))], ids=str
)
def test_50_steps_equal_the_paper_in_float64(
    entry: Entry, monkeypatch: pytest.MonkeyPatch, corrected: bool, bounds: tuple[float, float], fused: bool
) -> None:
    """Algorithm 2, with DeepSpeed's bounds of the ratio; a parameter of zeros moves by the ratio 1."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert native(SOURCE) is not None
    generator = torch.Generator().manual_seed(3)
    start = [torch.randn(9, 5, generator=generator), 5 * torch.randn(40, generator=generator), torch.zeros(3, 4)]
    weights = [torch.nn.Parameter(each.clone()) for each in start]
    groups = [{"params": weights[:1], "weight_decay": DECAY}, {"params": weights[1:], "lr": 2 * LR}]
    low, high = bounds
    changed = {"bias_correction": corrected, "min_coeff": low, "max_coeff": high, "fused": fused}
    settings = build(entry, lr=LR, betas=BETAS, eps=EPS, **changed)
    optimizer = entry.load()(groups, settings)
    expected = [each.double() for each in start]
    first, second = ([torch.zeros_like(each) for each in expected] for _ in range(2))
    ratios = []
    for step in range(1, 51):
        for index, (lr, decay) in enumerate([(LR, DECAY), (2 * LR, 0.0), (2 * LR, 0.0)]):
            gradient = torch.randn(start[index].shape, generator=generator)
            weights[index].grad, g = gradient, gradient.double()
            first[index] = BETAS[0] * first[index] + (1 - BETAS[0]) * g
            second[index] = BETAS[1] * second[index] + (1 - BETAS[1]) * g**2
            m_hat, v_hat = first[index], second[index]
            if corrected:
                m_hat, v_hat = m_hat / (1 - BETAS[0] ** step), v_hat / (1 - BETAS[1] ** step)
            x = expected[index]
            update = m_hat / (v_hat.sqrt() + EPS) + decay * x
            size, length = (sqrt(float((each * each).sum())) for each in (x, update))
            ratio = min(max(size / length, low), high) if size > 0 and length > 0 else 1.0
            ratios.append(ratio)
            expected[index] = x - lr * ratio * update
        optimizer.step()
    assert min(ratios) < 1 < max(ratios)
    for weight, right in zip(weights, expected, strict=True):
        torch.testing.assert_close(weight.detach().double(), right, rtol=5e-5, atol=5e-5)


def test_state_is_two_numbers_for_each_element(entry: Entry) -> None:
    weight = torch.nn.Parameter(torch.ones(300, 70))
    optimizer = entry.load()([{"params": [weight]}], build(entry))
    weight.grad = torch.ones(300, 70)
    optimizer.step()
    held = [value for value in optimizer.state[weight].values() if isinstance(value, torch.Tensor)]
    assert sum(value.numel() for value in held) == 2 * 300 * 70
    assert entry.component.state_numbers == (2, 0)


def test_settings_have_deepspeeds_defaults(entry: Entry) -> None:
    settings = build(entry)
    found = (
        settings.lr,
        settings.betas,
        settings.eps,
        settings.bias_correction,
        settings.max_coeff,
        settings.min_coeff,
    )
    assert found == (1e-3, (0.9, 0.999), 1e-8, True, 10.0, 0.01)


def test_bad_settings_are_reported(entry: Entry) -> None:
    with pytest.raises(ConfigError, match=r"(?s)optimizer\.params\.lr.*optimizer\.params\.betas"):
        build(entry, lr=-1.0, betas=(0.9, 1.5))
    with pytest.raises(ConfigError, match=r"min_coeff 2\.0 is more than max_coeff 1\.0"):
        build(entry, min_coeff=2.0, max_coeff=1.0)

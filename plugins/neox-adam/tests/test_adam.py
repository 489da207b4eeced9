import math

import pytest
import torch

from neox_core.errors import ConfigError
from neox_core.hooks.registry import Entry
from neox_core.testing import assert_light, build, check_optimizer, load_only

LR, BETAS, EPS, DECAY = 0.05, (0.8, 0.95), 1e-6, 0.1


@pytest.fixture
def entry() -> Entry:
    return load_only("neox-adam").find("optimizer", "Adam")


def test_listing_imports_no_torch() -> None:
    assert_light("neox-adam")


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
@pytest.mark.parametrize("torch_adam", [False, True])
def test_optimizer_contract(name: str, torch_adam: bool) -> None:
    check_optimizer(load_only("neox-adam"), name, lr=LR, torch_adam=torch_adam)


def test_coupled_decay_keeps_the_contract() -> None:
    check_optimizer(load_only("neox-adam"), "Adam", adam_w_mode=False)


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("torch_adam", [False, True])
def test_equals_the_closed_form_in_float64(entry: Entry, decoupled: bool, torch_adam: bool) -> None:
    """Kingma and Ba's moments as sums (equations 1 to 4 of arXiv:1412.6980), not as the recurrence."""
    start = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    gradients = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))  # [steps, weights]
    gradients[:, 3] = 0.0  # only decay moves this one
    weight = torch.nn.Parameter(start.clone())
    settings = build(entry, lr=LR, betas=BETAS, eps=EPS, adam_w_mode=decoupled, torch_adam=torch_adam)
    optimizer = entry.load()([{"params": [weight], "weight_decay": DECAY}], settings)
    expected, used = start.clone(), []
    for step, gradient in enumerate(gradients, start=1):
        weight.grad = gradient.clone()
        optimizer.step()
        used.append(gradient if decoupled else gradient + DECAY * expected)
        moments = []
        for beta, power in zip(BETAS, (1, 2), strict=True):
            terms = [(1 - beta) * beta ** (step - i) * g**power for i, g in enumerate(used, start=1)]
            moments.append(sum(terms) / (1 - beta**step))
        shrunk = expected * (1 - LR * DECAY) if decoupled else expected
        expected = shrunk - LR * moments[0] / (moments[1].sqrt() + EPS)
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-10, atol=1e-12)
    if decoupled:
        assert weight[3].item() == pytest.approx(3.0 * (1 - LR * DECAY) ** 9)


def test_settings_have_the_ledgers_defaults(entry: Entry) -> None:
    settings = build(entry)
    assert (settings.adam_w_mode, settings.torch_adam, settings.betas, settings.eps) == (
        True,
        False,
        (0.9, 0.999),
        1e-8,
    )


def test_fused_unless_torch_adam(entry: Entry) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    for torch_adam in (False, True):
        optimizer = entry.load()([{"params": [weight]}], build(entry, torch_adam=torch_adam))
        assert optimizer.param_groups[0]["fused"] is not torch_adam


def test_bad_settings_are_reported_together(entry: Entry) -> None:
    with pytest.raises(ConfigError, match=r"(?s)optimizer\.params\.lr.*optimizer\.params\.betas"):
        build(entry, lr=-1.0, betas=(0.9, 1.0))
    assert math.isfinite(build(entry, lr=0.0).lr)

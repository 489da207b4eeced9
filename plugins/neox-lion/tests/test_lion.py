import pytest
import torch
from neox_author.testing import assert_light, build, check_optimizer, load_only
from neox_kernels.compile_c import native
from neox_lion.optim import SOURCE

from neox_core.errors import ConfigError
from neox_core.hooks.registry import Entry

BETAS, DECAY = (0.8, 0.95), 0.3


@pytest.fixture
def entry() -> Entry:
    return load_only("neox-lion").find("optimizer", "Lion")


def test_listing_imports_no_torch() -> None:
    assert_light("neox-lion")


@pytest.mark.parametrize("fused", [True, False])
def test_optimizer_contract(fused: bool) -> None:
    check_optimizer(load_only("neox-lion"), "Lion", lr=0.05, fused=fused)


@pytest.mark.parametrize(("fused", "turned"), [(True, False), (False, False), (True, True)])
def test_50_steps_equal_the_paper_in_float64(
    entry: Entry, monkeypatch: pytest.MonkeyPatch, fused: bool, turned: bool
) -> None:
    """Algorithm 2: c = beta1 m + (1 - beta1) g; w -= lr (sign(c) + decay w); m = beta2 m + (1 - beta2) g."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert native(SOURCE) is not None
    generator = torch.Generator().manual_seed(3)
    start = [torch.randn(9, 5, generator=generator), torch.randn(40, generator=generator)]
    if turned:
        start[0] = start[0].T  # not contiguous
    weights = [torch.nn.Parameter(each.clone(memory_format=torch.preserve_format)) for each in start]
    groups = [{"params": weights[:1], "weight_decay": DECAY}, {"params": weights[1:], "lr": 0.02}]
    optimizer = entry.load()(groups, build(entry, lr=0.01, betas=BETAS, fused=fused))
    expected, buffers = [each.double() for each in start], [torch.zeros_like(each).double() for each in start]
    for _ in range(50):
        for index, (lr, decay) in enumerate([(0.01, DECAY), (0.02, 0.0)]):
            gradient = torch.randn(start[index].shape, generator=generator)
            gradient[0] = 0.0
            weights[index].grad, g = gradient, gradient.double()
            c = BETAS[0] * buffers[index] + (1 - BETAS[0]) * g
            expected[index] = expected[index] - lr * (torch.sign(c) + decay * expected[index])
            buffers[index] = BETAS[1] * buffers[index] + (1 - BETAS[1]) * g
        optimizer.step()
    for weight, right in zip(weights, expected, strict=True):
        torch.testing.assert_close(weight.detach().double(), right, rtol=1e-5, atol=1e-5)


def test_state_is_one_number_for_each_element(entry: Entry) -> None:
    weight = torch.nn.Parameter(torch.ones(300, 70))
    optimizer = entry.load()([weight], build(entry))
    weight.grad = torch.ones(300, 70)
    optimizer.step()
    assert sum(value.numel() for value in optimizer.state[weight].values()) == 300 * 70
    assert entry.component.state_numbers == (1, 0)


def test_bad_settings_are_reported_together(entry: Entry) -> None:
    with pytest.raises(ConfigError, match=r"(?s)optimizer\.params\.lr.*optimizer\.params\.betas"):
        build(entry, lr=-1.0, betas=(0.9, 1.5))

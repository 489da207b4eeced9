import math
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

import cpuinfo
import pytest
import torch
from neox_author.testing import assert_light, build, check_optimizer, load_only
from torch import Tensor

from neox_core.errors import ConfigError
from neox_core.hooks.registry import Entry

LR, BETAS, EPS, DECAY = 0.05, (0.8, 0.95), 1e-6, 0.1


@pytest.fixture(scope="module", autouse=True)
def ask_once_which_cpu() -> Iterator[None]:
    """DeepSpeed's Adam looks the processor up whenever one is made, which takes a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpuinfo, "get_cpu_info", cache(cpuinfo.get_cpu_info))
        yield


@pytest.fixture
def entry() -> Entry:
    return load_only("neox-adam").find("optimizer", "Adam")


def test_listing_imports_no_torch() -> None:
    assert_light("neox-adam")


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
@pytest.mark.parametrize("torch_adam", [False, True])
def test_optimizer_contract(name: str, torch_adam: bool) -> None:
    check_optimizer(load_only("neox-adam"), name, lr=LR, torch_adam=torch_adam)


@pytest.mark.parametrize("name", ["Adam", "CPU_Adam"])
def test_coupled_decay_keeps_the_contract(name: str) -> None:
    check_optimizer(load_only("neox-adam"), name, adam_w_mode=False)


@pytest.mark.parametrize("name", ["CPU_Adam", "CPU_torch_adam"])
def test_optimizers_on_the_host_keep_the_contract(name: str) -> None:
    check_optimizer(load_only("neox-adam"), name, lr=LR)


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("torch_adam", [False, True])
def test_50_steps_equal_the_closed_form_in_float64(entry: Entry, decoupled: bool, torch_adam: bool) -> None:
    """Kingma and Ba's moments as sums (equations 1 to 4 of arXiv:1412.6980), not as the recurrence."""
    start = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    gradients = torch.randn(50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))  # [steps, weights]
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
        assert weight[3].item() == pytest.approx(3.0 * (1 - LR * DECAY) ** 50)


@pytest.mark.parametrize(
    ("name", "options"), [("CPU_Adam", {}), ("CPU_Adam", {"adam_w_mode": False}), ("CPU_torch_adam", {})]
)
def test_50_steps_on_the_host_equal_the_recurrence_in_float64(name: str, options: dict[str, bool]) -> None:
    """Algorithm 1 of arXiv:1412.6980, with the decay of arXiv:1711.05101 or added to the gradient."""
    entry = load_only("neox-adam").find("optimizer", name)
    start = torch.randn(1000, generator=torch.Generator().manual_seed(1))
    gradients = torch.randn(50, 1000, generator=torch.Generator().manual_seed(2))  # [steps, weights]
    weight = torch.nn.Parameter(start.clone())
    settings = build(entry, lr=LR, betas=BETAS, eps=EPS, **options)
    optimizer = entry.load()([{"params": [weight], "weight_decay": DECAY}], settings)
    decoupled = options.get("adam_w_mode", True)
    expected, first, second = start.double(), torch.zeros(1000).double(), torch.zeros(1000).double()
    for step, gradient in enumerate(gradients, start=1):
        weight.grad = gradient.clone()
        optimizer.step()
        used = gradient.double() if decoupled else gradient.double() + DECAY * expected
        first = BETAS[0] * first + (1 - BETAS[0]) * used
        second = BETAS[1] * second + (1 - BETAS[1]) * used**2
        update = first / (1 - BETAS[0] ** step) / ((second / (1 - BETAS[1] ** step)).sqrt() + EPS)
        expected = expected - LR * update - (LR * DECAY * expected if decoupled else 0)
    torch.testing.assert_close(weight.detach().double(), expected, rtol=2e-5, atol=2e-5)


def test_classes_are_those_that_are_asked_for() -> None:
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    from neox_adam.optim import Adam

    catalog = load_only("neox-adam")
    for name, options, cls in (
        ("Adam", {}, Adam),
        ("Adam", {"adam_w_mode": False}, Adam),
        ("CPU_Adam", {}, DeepSpeedCPUAdam),
        ("CPU_torch_adam", {}, torch.optim.AdamW),
    ):
        entry, weight = catalog.find("optimizer", name), torch.nn.Parameter(torch.ones(6))
        optimizer = entry.load()([{"params": [weight]}], build(entry, **options))
        assert type(optimizer) is cls
        weight.grad = torch.ones(6)
        optimizer.step()
        held = [value for value in optimizer.state[weight].values() if torch.is_tensor(value) and value.ndim]
        assert (sum(value.numel() for value in held) / 6, 0) == entry.component.state_numbers


@pytest.mark.parametrize("decoupled", [True, False])
def test_a_kernel_that_was_chosen_makes_the_same_steps(entry: Entry, decoupled: bool) -> None:
    from neox_adam.optim import adam_step

    steps: list[int] = []

    def watched(weight: Tensor, *arguments: Any) -> Any:
        assert weight.is_contiguous()
        steps.append(arguments[3])
        return adam_step(weight, *arguments)

    def make() -> Any:
        weights = [torch.nn.Parameter(torch.ones(3, 5)), torch.nn.Parameter(torch.ones(5, 3).T)]
        settings = build(entry, lr=LR, adam_w_mode=decoupled, torch_adam=True)
        return weights, entry.load()([{"params": weights, "weight_decay": DECAY}], settings)

    weights, plain = make()
    others, other = make()
    for step in range(8):
        if step == 2:  # in the middle of a run, with the state that there is
            other.kernels = {"adam_step": watched}
        if step == 6:  # and resumed
            stored, then = other.state_dict(), others
            others, other = make()
            for each, before in zip(others, then, strict=True):
                each.data.copy_(before.detach())
            other.kernels = {"adam_step": watched}
            other.load_state_dict(stored)
        for one, another in zip(weights, others, strict=True):
            one.grad = torch.randn(3, 5, generator=torch.Generator().manual_seed(step))
            another.grad = one.grad.clone()
        plain.step()
        other.step()
        assert all(torch.equal(one, another) for one, another in zip(weights, others, strict=True))
    assert steps == [3, 4, 5, 6, 7, 8]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="copies from a GPU need one")
@pytest.mark.parametrize("name", ["CPU_Adam", "CPU_torch_adam"])
def test_parameters_on_a_gpu_are_stepped_on_the_host(name: str) -> None:
    entry = load_only("neox-adam").find("optimizer", name)
    start = torch.randn(300, generator=torch.Generator().manual_seed(1))
    weights = {device: torch.nn.Parameter(start.to(device)) for device in ("cpu", "cuda")}
    optimizers = {each: entry.load()([{"params": [weights[each]]}], build(entry)) for each in weights}
    for step in range(6):
        for device, weight in weights.items():
            weight.grad = torch.full((300,), float(step - 2), device=device)
            optimizers[device].step()
        if step == 3:
            optimizers["cuda"].load_state_dict(optimizers["cuda"].state_dict())
    state = optimizers["cuda"].state[weights["cuda"]]
    assert {value.device.type for value in state.values() if isinstance(value, torch.Tensor)} <= {"cpu"}
    assert torch.equal(weights["cuda"].detach().cpu(), weights["cpu"].detach())


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


def test_neither_a_step_nor_a_resume_imports_the_compiler_of_torch() -> None:
    """Which takes a second and 130 MB. One that torch's own Adam does not import needs no `_unwrapped` any more."""
    script = """
import sys, torch
from neox_adam.optim import adamw
from neox_adam.settings import AdamWSettings
weight = torch.nn.Parameter(torch.ones(3))
groups = [{"params": [weight]}]
optimizer = OPTIMIZER
weight.grad = torch.ones(3)
optimizer.step()
optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
print(weight.grad, "torch._dynamo" in sys.modules)
"""
    for made, imports in {"adamw(groups, AdamWSettings(lr=0.1))": False, "torch.optim.Adam(groups)": True}.items():
        command = [sys.executable, "-c", script.replace("OPTIMIZER", made)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
        assert done.stdout.strip() == f"None {imports}"

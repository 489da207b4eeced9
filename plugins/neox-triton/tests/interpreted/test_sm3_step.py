from typing import Any

import pytest
import torch
from neox_sm3.optim import SM3
from neox_sm3.optim import sm3_step as reference
from neox_sm3.settings import SM3Settings
from neox_triton.sm3_step import KERNEL, sm3_step


@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize("beta", [0.0, 0.9])
@pytest.mark.parametrize(("height", "width"), [(5, 123), (1, 1), (33, 260)])
def test_equals_the_reference(draw: Any, height: int, width: int, beta: float, momentum: float) -> None:
    drawn = [draw(*shape).detach() for shape in ((height, width), (height, 1), (1, width))]
    mine, theirs = ([drawn[0].clone(), drawn[1].square(), drawn[2].square()] for _ in range(2))
    moved = [torch.zeros(height, width) if momentum else None for _ in range(2)]
    for _ in range(3):
        grad = draw(height, width).detach()
        sm3_step(mine[0], grad, *mine[1:], 0.1, beta, 1e-30, 0.01, momentum, moved[0])
        reference(theirs[0], grad, *theirs[1:], 0.1, beta, 1e-30, 0.01, momentum, moved[1])
    pairs = zip([*mine, moved[0]], [*theirs, moved[1]], strict=True)
    assert all(ours is own or torch.allclose(ours, own, rtol=1e-5, atol=1e-6) for ours, own in pairs)


def steps(kernels: dict[str, Any], **settings: Any) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    weights = [torch.ones(6, 9, requires_grad=True), torch.ones(7, requires_grad=True)]
    optimizer = SM3([{"params": weights, "weight_decay": 0.1}], SM3Settings(lr=0.1, fused=False, **settings))
    optimizer.kernels = kernels
    for _ in range(3):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator)
        optimizer.step()
    return [each.detach() for each in weights]


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_the_optimizer_steps_by_it(momentum: float) -> None:
    calls: list[torch.Size] = []

    def counted(*arguments: Any) -> Any:
        calls.append(arguments[0].shape)
        return KERNEL(*arguments)

    pairs = zip(steps({"sm3_step": counted}, momentum=momentum), steps({}, momentum=momentum), strict=True)
    assert all(torch.allclose(ours, own, rtol=1e-5) for ours, own in pairs)
    assert calls == [torch.Size((6, 9))] * 3

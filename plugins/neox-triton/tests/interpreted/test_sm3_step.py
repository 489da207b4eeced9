from typing import Any

import pytest
import torch
from neox_sm3.optim import SM3
from neox_sm3.optim import sm3_step as reference
from neox_sm3.plugin import SM3Settings
from neox_triton.sm3_step import KERNEL, sm3_step

from neox_core.errors import ConfigError


@pytest.mark.parametrize("beta", [0.0, 0.9])
@pytest.mark.parametrize(("height", "width"), [(5, 123), (1, 1), (33, 260)])
def test_equals_the_reference(draw: Any, height: int, width: int, beta: float) -> None:
    mine, theirs = (
        [draw_.clone() for draw_ in tensors]
        for tensors in [[each.detach() for each in (draw(height, width), draw(height, 1), draw(1, width))]] * 2
    )
    for tensors in (mine, theirs):
        tensors[1].square_()
        tensors[2].square_()
    for _ in range(3):
        grad = draw(height, width).detach()
        sm3_step(mine[0], grad, *mine[1:], 0.1, beta, 1e-30, 0.01)
        reference(theirs[0], grad, *theirs[1:], 0.1, beta, 1e-30, 0.01)
    for ours, own in zip(mine, theirs, strict=True):
        assert torch.allclose(ours, own, rtol=1e-5, atol=1e-6)


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


def test_the_optimizer_steps_by_it() -> None:
    calls: list[torch.Size] = []

    def counted(*arguments: Any) -> Any:
        calls.append(arguments[0].shape)
        return KERNEL(*arguments)

    for ours, own in zip(steps({"sm3_step": counted}), steps({}), strict=True):
        assert torch.allclose(ours, own, rtol=1e-5)
    assert calls == [torch.Size((6, 9))] * 3
    with pytest.raises(ConfigError, match="no momentum"):
        steps({"sm3_step": counted}, momentum=0.5)

"""Products by oneDNN are those of torch, forward and backward, on every path."""

import pytest
import torch
from neox_gpt import matmul
from neox_gpt.matmul import linear, times_transposed
from torch import Tensor
from torch.nn import functional as F


@pytest.fixture(params=[True, False], ids=["onednn", "without"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """With the operator, and as in a torch that lacks it."""
    if not request.param:
        monkeypatch.setattr(matmul, "_POINTWISE", None)
    return request.param


def random(*size: int) -> Tensor:
    return torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(size)))


def test_this_torch_has_the_operator() -> None:
    """Else the tests below would prove one path only. A torch without it is slower, not wrong."""
    assert matmul._by_onednn(torch.ones(2, 2), torch.ones(2, 2))


@pytest.mark.parametrize("shape", [(7,), (5, 7), (3, 5, 7), (1, 1, 7)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_linear_and_its_gradients(library: bool, shape: tuple[int, ...], with_bias: bool) -> None:
    exact = [random(*shape), random(11, 7), random(11) if with_bias else None]
    results = []
    for function, dtype in ((linear, torch.float32), (F.linear, torch.float64)):
        args = [None if arg is None else arg.to(dtype).requires_grad_() for arg in exact]
        out = function(*args)
        (out**2).sum().backward()
        results.append([out, *(arg.grad for arg in args if arg is not None)])
    for ours, theirs in zip(*results, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)


def test_strict_fp32(library: bool) -> None:
    """Not the 8 or 11 bits that TF32 and bfloat16 products keep."""
    x, weight = random(64, 2048), random(64, 2048)
    exact = x @ weight.T
    error = (times_transposed(x.float(), weight.float()).double() - exact).norm() / exact.norm()
    assert error < 1e-6


@pytest.mark.parametrize("transposed", [(False, True), (True, False), (True, True)])
def test_transposed_views(library: bool, transposed: tuple[bool, bool]) -> None:
    x, weight = random(40, 24).float(), random(56, 24).float()
    views = [one.T.contiguous().T if turn else one for one, turn in zip((x, weight), transposed, strict=True)]
    torch.testing.assert_close(times_transposed(*views), x @ weight.T, rtol=1e-5, atol=1e-5)


def test_only_the_gradients_that_are_asked_for() -> None:
    weight = torch.randn(4, 3, requires_grad=True)
    linear(torch.randn(2, 3), weight, torch.zeros(4)).sum().backward()
    assert weight.grad is not None
    x = torch.randn(2, 3, requires_grad=True)
    linear(x, weight.detach()).sum().backward()
    assert x.grad is not None


def test_autocast_has_its_way(library: bool) -> None:
    x, weight = torch.randn(5, 3), torch.randn(4, 3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = linear(x, weight)
    out.sum().backward()
    assert (out.dtype, weight.grad.dtype) == (torch.bfloat16, torch.float32)


def test_nothing_in_nothing_out(library: bool) -> None:
    assert linear(torch.ones(0, 3), torch.ones(4, 3)).shape == (0, 4)

"""What `neox kernels check` finds: mistakes that an author makes, each beside the kernel that does not make it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from neox_kernels.compare import compare
from torch import Tensor

Op = Callable[..., Any]


def scaled(x: Tensor, weight: Tensor) -> Tensor:
    """The reference of an op with two gradients."""
    return x.square() * weight


def shrunk(weight: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The reference of an op that works in place."""
    return weight.sub_(grad), grad


class Right(torch.autograd.Function):
    """`scaled`, by a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x.square() * weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return 2 * grad * x * weight, (grad * x.square()).sum(0)


class WrongSlope(Right):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        return grad * x * weight, (grad * x.square()).sum(0)


class NoSlope(Right):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return Right.backward(ctx, grad)[0], None


class ReadsMemory(Right):
    """As a compiled kernel that takes the gradient for contiguous."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return Right.backward(ctx, grad.as_strided(grad.shape, (grad.shape[1], 1)))


class ReadsWeight(Right):
    """As a compiled kernel that takes an argument for contiguous."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        return Right.forward(ctx, x, weight.as_strided(weight.shape, (1,)))


class ReadsRows(Right):
    """As a compiled kernel that asks for the distance between numbers of a row, and not between rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        return Right.forward(ctx, x.as_strided(x.shape, (x.shape[1] * x.stride(1), x.stride(1))), weight)


class SpoilsWhenDifferentiated(Right):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        found = Right.backward(ctx, grad)
        ctx.saved_tensors[0].detach().zero_()
        return found


def without_gradients(x: Tensor, weight: Tensor) -> Tensor:
    with torch.no_grad():
        return scaled(x, weight)


def into_the_argument(x: Tensor, weight: Tensor) -> Tensor:
    return x.detach().copy_(scaled(x, weight).detach())


def as_another_dtype(x: Tensor, weight: Tensor) -> Tensor:
    return scaled(x, weight).double()


def another_each_time(x: Tensor, weight: Tensor) -> Tensor:
    return scaled(x, weight) + torch.rand(()).item() * 1e-6


def worse_without_gradients(x: Tensor, weight: Tensor) -> Tensor:
    return scaled(x, weight) * (1 if torch.is_grad_enabled() else 1.5)


def to_nothing(x: Tensor, weight: Tensor) -> Tensor:
    return scaled(x, weight) * float("nan")


def flat(x: Tensor, weight: Tensor) -> Tensor:
    return scaled(x, weight).flatten()


def twice(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return scaled(x, weight), x


def copied(weight: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return weight - grad, grad


def in_silence(weight: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """As a compiled kernel writes, past torch."""
    values = weight.detach().numpy()
    values -= grad.numpy()
    return weight, grad


def examples(requires_grad: bool) -> tuple[Tensor, Tensor]:
    x = torch.linspace(-1, 1, 21).view(3, 7)
    weight = torch.linspace(0.5, 2, 7)
    return x.requires_grad_(requires_grad), weight.requires_grad_(requires_grad)


@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_right_kernel_has_no_fault(requires_grad: bool) -> None:
    for op in (scaled, Right.apply):
        verdict = compare(op, scaled, examples(requires_grad))
        assert verdict.faults == ()
        assert verdict.error < 1e-6
    assert compare(shrunk, shrunk, (torch.ones(3), torch.full((3,), 0.25))).error == 0.0


@pytest.mark.parametrize("requires_grad", [True, False], ids=["asked", "unasked"])
@pytest.mark.parametrize(
    ("op", "faults"),
    [
        (without_gradients, ("gives no gradient of x", "gives no gradient of weight")),
        (NoSlope.apply, ("gives no gradient of weight",)),
        (as_another_dtype, ("result 1 is float64, not float32",)),
        (SpoilsWhenDifferentiated.apply, ("changes x in place",)),
        (another_each_time, ("gives different bits in a second call",)),
        (flat, ("result 1 has the shape [21], not [3, 7]",)),
        (twice, ("gives 2 results, not 1", "result 2 has the memory of x")),
        (
            into_the_argument,
            (
                "changes x in place",
                "result 1 has the memory of x",
                "gives no gradient of x",
                "gives no gradient of weight",
            ),
        ),
    ],
)
def test_a_breach_is_named(op: Op, faults: tuple[str, ...], requires_grad: bool) -> None:
    assert compare(op, scaled, examples(requires_grad)).faults == faults


@pytest.mark.parametrize("requires_grad", [True, False], ids=["asked", "unasked"])
@pytest.mark.parametrize(
    ("op", "where"),
    [
        (WrongSlope.apply, "the gradient of x"),
        (ReadsMemory.apply, "the gradient of weight, where that of the result is strided"),
        (ReadsWeight.apply, "result 1, where arguments are strided"),
        (ReadsRows.apply, "result 1, where arguments are strided"),
        (worse_without_gradients, "result 1 under no_grad"),
        (to_nothing, "result 1"),
    ],
)
def test_a_wrong_number_is_placed(op: Op, where: str, requires_grad: bool) -> None:
    verdict = compare(op, scaled, examples(requires_grad))
    assert verdict.faults == ()
    assert verdict.error > 0.1
    assert verdict.where == where


def test_an_op_that_works_in_place() -> None:
    arguments = torch.linspace(1, 2, 5), torch.linspace(0, 1, 5)
    assert compare(copied, shrunk, arguments).error > 0.1
    verdict = compare(lambda weight, grad: (weight.sub_(grad), grad.zero_()), shrunk, arguments)
    assert verdict.faults == ("changes grad in place",)
    (fault,) = compare(in_silence, shrunk, arguments).faults
    assert fault == "changes weight and leaves its version: call torch.autograd.graph.increment_version"
    assert torch.equal(arguments[0], torch.linspace(1, 2, 5))

"""Compares a kernel with the reference of its op, forward and backward, and checks the rest of its contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from neox_kernels.form import Names, Outcome, called, faults, same

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
"""Largest error of a kernel by the dtype of its tensors, as a share of the largest number of a result."""


@frozen
class Verdict:
    """error: the largest difference of a result, gradient or changed argument, as a share of its largest number.

    where: which of them it is. faults: other differences from the reference, in words; with a fault the error is inf.
    """

    error: float
    where: str
    faults: tuple[str, ...] = ()

    def fault(self, limit: float) -> str:
        """What is wrong, in words; "" where nothing is. limit: the largest error that is allowed."""
        off = "" if self.error <= limit else f"off by {self.error:.1e} of {limit:.0e} in {self.where}"
        return "; ".join(self.faults) or off


def compare(kernel: Callable[..., Any], reference: Callable[..., Any], arguments: Sequence[Any]) -> Verdict:
    """Compare a kernel with the reference of its op.

    Values are compared with those of the reference in fp64; dtypes, shapes, arguments changed in place and
    shared memory with those of the reference in the dtypes of the arguments. The gradient of every argument
    that has one in the reference is compared, whether or not the example asks for it. The kernel is called five
    times: the second call must give the same bits, and gets strided gradients; the third runs under no_grad; the others
    get arguments that lie apart in memory, but for those that the op changes.
    """
    names = Names(reference)
    narrow = _called(reference, arguments)
    wide = [_widened(each) for each in arguments]
    floating = [at for at, each in enumerate(wide) if isinstance(each, Tensor) and each.is_floating_point()]
    theirs = _called(reference, wide, () if narrow.changed else floating, narrow.results)
    asked = [at for at, each in theirs.gradients.items() if each is not None]
    first = _called(kernel, arguments, asked, narrow.results)
    if found := tuple(_faults(first, narrow, names)):
        return Verdict(float("inf"), "", found)
    second = _called(kernel, arguments, asked, narrow.results, strided=True)
    without = _called(kernel, arguments)
    views = [
        _called(
            kernel,
            [each if at in narrow.changed else form(each) for at, each in enumerate(arguments)],
            asked,
            narrow.results,
        )
        for form in (_spaced, _beside)
    ]
    if not all(same(one, other) for one, other in zip(first.results, second.results, strict=True)):
        return Verdict(float("inf"), "", ("gives different bits in a second call",))
    distances = [
        *_distances(first, theirs, names),
        *((error, f"{where}, where that of the result is strided") for error, where in _slopes(second, theirs, names)),
        *((error, f"{where} under no_grad") for error, where in _values(without, theirs, names)),
        *(
            (error, f"{where}, where arguments are strided")
            for each in views
            for error, where in _distances(each, theirs, names)
        ),
    ]
    return Verdict(*max(distances, key=lambda each: each[0]))


def error_of(kernel: Callable[..., Any], reference: Callable[..., Any], arguments: Sequence[Any]) -> float:
    """The error as in `compare`, of one call of the kernel; gradients only of arguments that require one."""
    asked = [at for at, each in enumerate(arguments) if isinstance(each, Tensor) and each.requires_grad]
    ours = _called(kernel, arguments, asked)
    theirs = _called(reference, [_widened(each) for each in arguments], asked, ours.results)
    return max(error for error, _ in _distances(ours, theirs, Names(reference)))


def _called(
    compute: Callable[..., Any],
    arguments: Sequence[Any],
    asked: Sequence[int] = (),
    like: Sequence[Tensor] | None = None,
    *,
    strided: bool = False,
) -> Outcome:
    """The outcome of a call. like: results whose dtypes the gradients of the results get."""

    def slopes(results: list[Tensor], inputs: dict[int, Tensor]) -> dict[int, Tensor | None]:
        return _gradients(results, inputs, results if like is None else like, strided)

    return called(compute, arguments, asked, slopes)


def _faults(ours: Outcome, theirs: Outcome, names: Names) -> Iterator[str]:
    """Differences of a kernel from the reference in the same dtypes, except for values."""
    yield from faults(ours, theirs, names)
    for at, grad in ours.gradients.items():
        if grad is None:
            yield f"gives no gradient of {names[at]}"


def _gradients(
    results: Sequence[Tensor], inputs: dict[int, Tensor], like: Sequence[Tensor], strided: bool
) -> dict[int, Tensor | None]:
    """Gradients of inputs. Those of the results are drawn, equal for equal shapes, with the precision of `like`."""
    generator = torch.Generator().manual_seed(7)
    drawn = [torch.randn(each.shape, generator=generator) for each in results]
    grads = [each.to(one.dtype).to(result) for each, one, result in zip(drawn, like, results, strict=False)]
    pairs = [(result, grad) for result, grad in zip(results, grads, strict=False) if result.requires_grad]
    if not pairs or not inputs:
        return dict.fromkeys(inputs)
    if strided:
        pairs = [(result, torch.stack((grad, grad), -1)[..., 0]) for result, grad in pairs]
    outputs, slopes = zip(*pairs, strict=True)
    found = torch.autograd.grad(outputs, list(inputs.values()), slopes, allow_unused=True)
    return dict(zip(inputs, found, strict=True))


def _distances(ours: Outcome, theirs: Outcome, names: Names) -> Iterator[tuple[float, str]]:
    """(error, where) of everything that both have."""
    yield from _values(ours, theirs, names)
    yield from _slopes(ours, theirs, names)


def _values(ours: Outcome, theirs: Outcome, names: Names) -> Iterator[tuple[float, str]]:
    for place, (mine, own) in enumerate(zip(ours.results, theirs.results, strict=True), 1):
        yield _distance(mine, own), f"result {place}"
    for at in theirs.changed:
        yield _distance(ours.after[at], theirs.after[at]), f"the changed {names[at]}"


def _slopes(ours: Outcome, theirs: Outcome, names: Names) -> Iterator[tuple[float, str]]:
    for at, mine in ours.gradients.items():
        own = theirs.gradients[at]
        if mine is None or own is None:
            yield 0.0 if mine is own else float("inf"), f"the gradient of {names[at]}"
        else:
            yield _distance(mine, own), f"the gradient of {names[at]}"


def _distance(ours: Tensor, theirs: Tensor) -> float:
    if ours.shape != theirs.shape or not bool(ours.isfinite().all()):
        return float("inf")
    largest = max(float(theirs.abs().max()), float(torch.finfo(torch.float32).tiny))
    return float((ours.double() - theirs).abs().max()) / largest


def _spaced(value: Any) -> Any:
    """The same numbers with others between them."""
    return torch.stack((value, value), -1)[..., 0] if isinstance(value, Tensor) else value


def _beside(value: Any) -> Any:
    """The same numbers in rows that are longer."""
    rows = isinstance(value, Tensor) and value.dim() > 0
    return torch.cat((value, value), -1)[..., : value.shape[-1]] if rows else value


def _widened(value: Any) -> Any:
    return value.detach().double() if isinstance(value, Tensor) and value.is_floating_point() else value

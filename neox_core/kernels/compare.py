"""Compares a kernel with the reference of its op, forward and backward, and checks the rest of its contract."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

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


def compare(kernel: Callable[..., Any], reference: Callable[..., Any], arguments: Sequence[Any]) -> Verdict:
    """Compare a kernel with the reference of its op.

    Values are compared with those of the reference in fp64; dtypes, shapes, arguments changed in place and
    shared memory with those of the reference in the dtypes of the arguments. The gradient of every argument
    that has one in the reference is compared, whether or not the example asks for it. The kernel is called
    three times: the second call must give the same bits, and gets strided gradients; the third runs under no_grad.
    """
    names = _Names(reference)
    narrow = _called(reference, arguments)
    wide = [_widened(each) for each in arguments]
    floating = [at for at, each in enumerate(wide) if isinstance(each, Tensor) and each.is_floating_point()]
    theirs = _called(reference, wide, () if narrow.changed else floating, narrow.results)
    asked = [at for at, each in theirs.gradients.items() if each is not None]
    first = _called(kernel, arguments, asked, narrow.results)
    faults = tuple(_faults(first, narrow, names))
    if faults:
        return Verdict(float("inf"), "", faults)
    second = _called(kernel, arguments, asked, narrow.results, strided=True)
    without = _called(kernel, arguments)
    if not all(torch.equal(one, other) for one, other in zip(first.results, second.results, strict=True)):
        return Verdict(float("inf"), "", ("gives different bits in a second call",))
    found = [
        *_distances(first, theirs, names),
        *((error, f"{where}, where that of the result is strided") for error, where in _slopes(second, theirs, names)),
        *((error, f"{where} under no_grad") for error, where in _values(without, theirs, names)),
    ]
    return Verdict(*max(found, key=lambda each: each[0]))


def faults_of(kernel: Callable[..., Any], reference: Callable[..., Any], arguments: Sequence[Any]) -> tuple[str, ...]:
    """The faults of one call of a kernel, without gradients: shapes, dtypes, changed arguments."""
    return tuple(_faults(_called(kernel, arguments), _called(reference, arguments), _Names(reference)))


def error_of(kernel: Callable[..., Any], reference: Callable[..., Any], arguments: Sequence[Any]) -> float:
    """The error as in `compare`, of one call of the kernel; gradients only of arguments that require one."""
    asked = [at for at, each in enumerate(arguments) if isinstance(each, Tensor) and each.requires_grad]
    ours = _called(kernel, arguments, asked)
    theirs = _called(reference, [_widened(each) for each in arguments], asked, ours.results)
    return max(error for error, _ in _distances(ours, theirs, _Names(reference)))


def bytes_of(x: Tensor) -> int:
    """Bytes to read a tensor once; an expanded tensor has fewer bytes than elements."""
    size: int = min(x.numel() * x.element_size(), x.untyped_storage().nbytes())
    return size


def results_of(returned: Any) -> list[Tensor]:
    """The tensors that an op returned. Raises TypeError."""
    results = [returned] if isinstance(returned, Tensor) else returned
    if not isinstance(results, tuple | list) or not all(isinstance(each, Tensor) for each in results):
        raise TypeError(f"an op returns a tensor or a tuple of tensors, not {type(returned).__name__}")
    return list(results)


class _Names:
    """Names of the arguments of an op for messages."""

    def __init__(self, reference: Callable[..., Any]) -> None:
        self._names = list(inspect.signature(reference).parameters)

    def __getitem__(self, at: int) -> str:
        return self._names[at] if at < len(self._names) else f"argument {at + 1}"


@frozen(eq=False)
class _Outcome:
    """The outcome of a call; arguments and results are identified by their positions.

    gradients: of the arguments that should have one, None where there is none. after: the arguments
    that are tensors. changed: those with other values or another version. versions: those with another version.
    shared: (result, argument) with the same memory.
    """

    results: list[Tensor]
    gradients: dict[int, Tensor | None]
    after: dict[int, Tensor]
    changed: frozenset[int]
    versions: frozenset[int]
    shared: frozenset[tuple[int, int]]


def _called(
    compute: Callable[..., Any],
    arguments: Sequence[Any],
    asked: Sequence[int] = (),
    like: Sequence[Tensor] | None = None,
    *,
    strided: bool = False,
) -> _Outcome:
    """The outcome of a call with copies of the arguments. like: results whose dtypes the gradients of the results
    get.
    """
    own = [_copied(each).requires_grad_(at in asked) if isinstance(each, Tensor) else each
           for at, each in enumerate(arguments)]  # fmt: skip
    tensors = {at: each for at, each in enumerate(own) if isinstance(each, Tensor)}
    before = {at: (each.detach().clone(), each._version) for at, each in tensors.items()}  # noqa: SLF001
    with torch.set_grad_enabled(bool(asked)):
        results = results_of(compute(*own))
    gradients = _gradients(results, {at: tensors[at] for at in asked}, results if like is None else like, strided)
    versions = frozenset(at for at, each in tensors.items() if each._version != before[at][1])  # noqa: SLF001
    values = frozenset(at for at, each in tensors.items() if not _same(each, before[at][0]))
    shared = frozenset(
        (place, at) for place, result in enumerate(results) for at, each in tensors.items() if _overlap(result, each)
    )
    after = {at: each.detach() for at, each in tensors.items()}
    return _Outcome([each.detach() for each in results], gradients, after, values | versions, versions, shared)


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


def _faults(ours: _Outcome, theirs: _Outcome, names: _Names) -> Iterator[str]:
    """Differences of a kernel from the reference in the same dtypes, except for values."""
    if len(ours.results) != len(theirs.results):
        yield f"gives {len(ours.results)} results, not {len(theirs.results)}"
    for place, (mine, own) in enumerate(zip(ours.results, theirs.results, strict=False), 1):
        if mine.shape != own.shape:
            yield f"result {place} has the shape {list(mine.shape)}, not {list(own.shape)}"
        if mine.dtype != own.dtype:
            yield f"result {place} is {_name(mine)}, not {_name(own)}"
        if mine.device != own.device:
            yield f"result {place} is on {mine.device}, not {own.device}"
    for at in sorted(ours.changed - theirs.changed):
        yield f"changes {names[at]} in place"
    for at in sorted(ours.changed & theirs.versions - ours.versions):
        yield f"changes {names[at]} and leaves its version: call torch.autograd.graph.increment_version"
    for place, at in sorted(ours.shared - theirs.shared):
        yield f"result {place + 1} has the memory of {names[at]}"
    for at, grad in ours.gradients.items():
        if grad is None:
            yield f"gives no gradient of {names[at]}"


def _distances(ours: _Outcome, theirs: _Outcome, names: _Names) -> Iterator[tuple[float, str]]:
    """(error, where) of everything that both have."""
    yield from _values(ours, theirs, names)
    yield from _slopes(ours, theirs, names)


def _values(ours: _Outcome, theirs: _Outcome, names: _Names) -> Iterator[tuple[float, str]]:
    for place, (mine, own) in enumerate(zip(ours.results, theirs.results, strict=True), 1):
        yield _distance(mine, own), f"result {place}"
    for at in theirs.changed:
        yield _distance(ours.after[at], theirs.after[at]), f"the changed {names[at]}"


def _slopes(ours: _Outcome, theirs: _Outcome, names: _Names) -> Iterator[tuple[float, str]]:
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


def _same(one: Tensor, other: Tensor) -> bool:
    return bool(((one == other) | ((one != one) & (other != other))).all())  # noqa: PLR0124 a nan is not equal to itself


def _overlap(one: Tensor, other: Tensor) -> bool:
    memory: int = one.untyped_storage().data_ptr()
    others: int = other.untyped_storage().data_ptr()
    return memory == others != 0


def _copied(value: Tensor) -> Tensor:
    """A copy with the same strides, except where elements overlap."""
    value = value.detach()
    if any(stride == 0 and size > 1 for stride, size in zip(value.stride(), value.shape, strict=True)):
        return value.clone()
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(value)


def _widened(value: Any) -> Any:
    return value.detach().double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")

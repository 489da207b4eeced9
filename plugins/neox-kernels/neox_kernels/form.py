"""Whether a kernel returns results of the form that its reference has: shapes, dtypes, devices, changed arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

Gradients = Mapping[int, "Tensor | None"]


def faults_of(kernel: Callable[..., Any], reference: Callable[..., Any], arguments: Sequence[Any]) -> tuple[str, ...]:
    """The faults of one call of a kernel, without gradients: shapes, dtypes, changed arguments."""
    return tuple(faults(called(kernel, arguments), called(reference, arguments), Names(reference)))


def results_of(returned: Any) -> list[Tensor]:
    """The tensors that an op returned. Raises TypeError."""
    results = [returned] if isinstance(returned, Tensor) else returned
    if not isinstance(results, tuple | list) or not all(isinstance(each, Tensor) for each in results):
        raise TypeError(f"an op returns a tensor or a tuple of tensors, not {type(returned).__name__}")
    return list(results)


class Names:
    """Names of the arguments of an op for messages."""

    def __init__(self, reference: Callable[..., Any]) -> None:
        self._names = list(inspect.signature(reference).parameters)

    def __getitem__(self, at: int) -> str:
        return self._names[at] if at < len(self._names) else f"argument {at + 1}"


@frozen(eq=False)
class Outcome:
    """The outcome of a call; arguments and results are identified by their positions.

    gradients: of the arguments that should have one, None where there is none. after: the arguments
    that are tensors. changed: those with other values or another version. versions: those with another version.
    shared: (result, argument) with the same memory.
    """

    results: list[Tensor]
    gradients: Gradients
    after: dict[int, Tensor]
    changed: frozenset[int]
    versions: frozenset[int]
    shared: frozenset[tuple[int, int]]


def called(
    compute: Callable[..., Any],
    arguments: Sequence[Any],
    asked: Sequence[int] = (),
    slopes: Callable[[list[Tensor], dict[int, Tensor]], Gradients] | None = None,
) -> Outcome:
    """The outcome of a call with copies of the arguments.

    asked: positions of arguments that require a gradient. slopes: (results, those arguments) -> their gradients.
    """
    own = [_copied(each).requires_grad_(at in asked) if isinstance(each, Tensor) else each
           for at, each in enumerate(arguments)]  # fmt: skip
    tensors = {at: each for at, each in enumerate(own) if isinstance(each, Tensor)}
    before = {at: (each.detach().clone(), each._version) for at, each in tensors.items()}  # noqa: SLF001
    with torch.set_grad_enabled(bool(asked)):
        results = results_of(compute(*own))
    gradients = slopes(results, {at: tensors[at] for at in asked}) if slopes is not None else {}
    versions = frozenset(at for at, each in tensors.items() if each._version != before[at][1])  # noqa: SLF001
    values = frozenset(at for at, each in tensors.items() if not same(each, before[at][0]))
    shared = frozenset(
        (place, at) for place, result in enumerate(results) for at, each in tensors.items() if _overlap(result, each)
    )
    after = {at: each.detach() for at, each in tensors.items()}
    return Outcome([each.detach() for each in results], gradients, after, values | versions, versions, shared)


def faults(ours: Outcome, theirs: Outcome, names: Names) -> Iterator[str]:
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


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same numbers, or nan, in the same places."""
    return bool(((one == other) | ((one != one) & (other != other))).all())  # noqa: PLR0124 a nan is not equal to itself


def _overlap(one: Tensor, other: Tensor) -> bool:
    memory: int = one.untyped_storage().data_ptr()
    others: int = other.untyped_storage().data_ptr()
    return memory == others != 0


def _copied(value: Tensor) -> Tensor:
    """A copy with the same strides, except where elements overlap. What lies between the elements is nan, or 0."""
    value = value.detach()
    if any(stride == 0 and size > 1 for stride, size in zip(value.stride(), value.shape, strict=True)):
        return value.clone()
    span = max(0, 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)))
    between = float("nan") if value.is_floating_point() else 0
    return value.new_full((span,), between).as_strided(value.shape, value.stride()).copy_(value)


def _name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")

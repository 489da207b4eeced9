"""A static model of what a kernel moves through memory, next to the least that its op has to.

Nothing is computed: the large examples are run on the meta device, where the starts of kernels are recorded and the
operations of torch between them counted. A cache is taken to be endless within a start and to be empty after it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from attrs import frozen
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

ENOUGH = 0.85
"""Of the bandwidth of a device, what a kernel should reach."""
RIDGE = 150
"""FLOPs for a byte from which on the products of matrices take longer than memory, on a GPU of 2020 or later."""
_MAKES_NOTHING = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "alias")
_FILLS = ("zeros_like", "new_zeros", "ones_like", "new_ones", "full_like", "new_full")


class Start(Protocol):
    """A recorded start of a kernel."""

    name: str
    moved: int
    flops: int


class Recorded(Protocol):
    """A kernel that has a model. remembers: whether a backward pass needs the first argument."""

    remembers: bool

    def __call__(self, *arguments: Any) -> Any: ...

    def recording(self) -> AbstractContextManager[list[Start]]:
        """Within it kernels are not started but listed."""
        ...


@frozen
class Traffic:
    """Bytes and FLOPs of a forward and a backward pass. by_name: bytes of starts, and of operations of torch."""

    least: int
    flops: int
    by_name: dict[str, int]

    @property
    def moved(self) -> int:
        """All bytes."""
        return sum(self.by_name.values())

    @property
    def share(self) -> float:
        """Of the bandwidth, what can be reached at most."""
        return min(1.0, self.least / max(self.moved, 1))

    @property
    def line(self) -> str:
        """For people."""
        moved = f"moves {self.moved / 1e6:.0f} MB of at least {self.least / 1e6:.0f} MB"
        if self.flops > RIDGE * self.moved:
            return f"{moved}, bound by {self.flops / 1e12:.1f} TFLOP of products"
        if self.share >= ENOUGH:
            return f"{moved}: at most {self.share:.0%} of bandwidth"
        most = sorted(self.by_name.items(), key=lambda each: -each[1])[:4]
        named = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in most)
        return f"{moved}: at most {self.share:.0%} of bandwidth, MISSES {ENOUGH:.0%}: {named}"


def traffic_of(kernel: Recorded, arguments: Iterable[Any]) -> Traffic:
    """Of one example on the meta device."""
    own = list(arguments)
    tensors = [each for each in own if isinstance(each, Tensor)]
    with FlopCounterMode(display=False) as flops, _Operations() as operations, kernel.recording() as starts:
        returned = kernel(*own)
        results = [returned] if isinstance(returned, Tensor) else list(returned)
        inputs = [each for each in tensors if each.requires_grad]
        found: tuple[Tensor, ...] = ()
        if inputs:
            grads = [torch.empty_like(each) for each in results]
            found = torch.autograd.grad(results, inputs, grads)
    by_name = Counter(operations.bytes)
    for start in starts:
        by_name[start.name] += start.moved
    backward = [*results, *found, *(tensors[:1] if kernel.remembers else ())] if inputs else []
    return Traffic(
        _size([*tensors, *results, *backward]),
        sum(each.flops for each in starts) + flops.get_total_flops(),
        dict(by_name),
    )


def bytes_of(x: Tensor) -> int:
    """Bytes to read a tensor once; an expanded tensor has fewer bytes than elements."""
    size: int = min(x.numel() * x.element_size(), x.untyped_storage().nbytes())
    return size


class _Operations(TorchDispatchMode):
    """Counts what operations of torch read and write, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        views = any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns)  # noqa: SLF001
        if not views and name not in _MAKES_NOTHING:
            read = () if name in _FILLS else _tensors((args, kwargs))
            self.bytes[name] += _size([*read, *_tensors(returned)])
        return returned


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)


def _size(tensors: Iterable[Tensor]) -> int:
    return sum(bytes_of(each) for each in tensors)

"""Refuses calls that on a GPU would wait for what is computed there."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch import bool as truth
from torch.overrides import TorchFunctionMode

from neox_author.testing.clauses import hold

WAITS = {"item", "tolist", "numpy", "cpu", "nonzero", "argwhere", "masked_select", "unique", "unique_consecutive"}
WAITS |= {"is_nonzero", "equal", "allclose", "bincount", "__bool__", "__int__", "__float__", "__index__", "__array__"}


class NoWait(TorchFunctionMode):
    """Refuses what copies a number to the host, or makes a shape of one."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        masked = name == "__getitem__" and any(
            isinstance(each, Tensor) and each.dtype == truth
            for each in (args[1] if isinstance(args[1], tuple) else (args[1],))
        )
        hold(name not in WAITS and not masked, f"it does not wait for the device, as {name} does")
        return func(*args, **(kwargs or {}))

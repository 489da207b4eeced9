"""Kernels: faster ways to compute an op that has a reference in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Kernel(Protocol):
    """`target`: an object with `why_not` that is called like the reference of its op. Offered as `<op>.<name>`.

    The op and its reference are named by `Component.ops` of the part that owns it, or by `hooks.ops.CORE_OPS`. Equal to
    the reference to the tolerance that its documentation states, forward and backward; deterministic: the same
    arguments on the same device give the same bits, so nothing is tuned by the clock while it runs.

    `neox kernels check` asks for the rest of it: results have the dtypes and shapes of the reference's; every argument
    that the reference gives a gradient gets one, also where the gradient of the result is strided; arguments that the
    reference leaves alone are left alone, those that it changes in place have their versions raised
    (`torch.autograd.graph.increment_version`); no result has the memory of an argument unless the reference's has.
    """

    tested: frozenset[str]
    """Devices that its tests have passed on, such as "sm_90" or "gfx942". On others it runs only when asked for.

    On a CPU every kernel runs only when asked for, since `auto` takes the references there. A kernel may also have a
    text `unasked`: why `auto` shall take it on no device, though it is right. One that has `recording` and `remembers`,
    see `neox_kernels.roofline.Recorded`, is in `neox kernels list --roofline`. One that has `tiles`, `candidates`,
    `use_tiles` and `tuning_examples`, see `kernels.tiles.Tiled`, is measured by `neox kernels tune`.
    """

    def why_not(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[str, ...]:
        """The reasons why it cannot run; empty: it can. It looks at nothing but its arguments and what is installed.

        shape, dtype: of the first tensor, for one sample.
        """
        ...

    def __call__(self, *args: Any) -> Any: ...

    def examples(self, dtype: torch.dtype, device: torch.device, *, large: bool) -> Iterable[tuple[Any, ...]]:
        """Arguments to compare it on with its reference; large: to measure it on. The meta device is among them.

        `neox kernels check` takes every gradient that the reference has; `neox kernels bench` those of arguments that
        require one.
        """
        ...


class KernelUser(Protocol):
    """A part of a model that computes an op by the kernel for it where there is one, else by the reference.

    Any module, activation or optimizer that has this attribute is one. It is empty until the build fills it.
    """

    kernels: Mapping[str, Callable[..., Any]]
    """By op."""

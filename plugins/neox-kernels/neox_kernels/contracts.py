"""Kernels: faster ways to compute an op that has a reference in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Kernel(Protocol):
    """`target`: an object that has `why_not` and the call signature of its op's reference. Offered as `<op>.<name>`.

    `Component.ops` of the component that owns the op names the op and its reference.

    * It equals the reference, forward and backward, to `neox_kernels.api.TOLERANCE` of each dtype.
    * It is deterministic: the same arguments on the same device give the same bits, so nothing is tuned while it runs.
    * Results have the dtypes and shapes of the reference's results.
    * Every argument that has a gradient in the reference gets one, also where the gradient of the result is strided.
    * Arguments may be strided; those that the op changes in place are contiguous.
    * It does not change arguments that the reference does not change, and raises the version of those that both change
      in place (`torch.autograd.graph.increment_version`).
    * No result shares memory with an argument unless the reference's result does.

    `neox kernels check` checks all of this.
    """

    tested: frozenset[str]
    """Devices on which its tests have passed, such as "sm_90" or "gfx942". On others it runs only when asked for.

    On a CPU every kernel runs only when asked for, since `auto` takes the references there. Optional members:
    an attribute `unasked`: the reason why `auto` does not choose it on any device, although it is right;
    `recording` and `remembers`, see `neox_kernels.roofline.Recorded`, for `neox kernels list --roofline`;
    `set_up(name, architecture)`, called once for a kernel that a run uses, returns words for the log and values to keep
    in kernels.json; `digest_here()` is a text of what it reads on this machine, such as a table, equal on all ranks;
    `neox_kernels.api.Tiled` has both, for `neox kernels tune`.
    """

    def why_not(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[str, ...]:
        """The reasons why it cannot run; empty: it can. Depends only on its arguments and on what is installed.

        shape, dtype: of the first tensor, for one sample.
        device: where it would run.
        """

    def __call__(self, *args: Any) -> Any: ...

    def examples(self, dtype: torch.dtype, device: torch.device, *, large: bool) -> Iterable[tuple[Any, ...]]:
        """Arguments on which to compare it with its reference: one example or more for each dtype, also for one in
        which it cannot run. One argument or more is a tensor.

        dtype, device: of the tensors; the device may be meta.
        large: whether to give arguments on which to measure it.
        `neox kernels check` compares every gradient of the reference, `bench` computes those that are required.
        """


class KernelUser(Protocol):
    """A component that computes an op by a kernel where there is one, else by the reference.

    A module, activation or optimizer with this attribute is one. The mapping is empty until the model is built.
    """

    kernels: Mapping[str, Callable[..., Any]]
    """Implementation by op."""

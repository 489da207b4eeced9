"""Everything that neox changes in the modules of DeepSpeed and torch, and why.

Each function changes one thing, in the versions that it names. A test of each fails once a newer version no longer
needs it: delete the function then.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from neox_deepspeed.jit_wait import acquire, wait

if TYPE_CHECKING:
    import torch


def import_deepspeed(device: str) -> None:
    """Import DeepSpeed in such a way that every later import of it finds it changed. device: "cpu" or "cuda"."""
    os.environ["DS_ACCELERATOR"] = device  # read once, when deepspeed is imported
    with _without_boosted_trees():
        _skip_probes_of_ops()
    _skip_compiler_for_muon()


@contextmanager
def _without_boosted_trees() -> Iterator[None]:
    """DeepSpeed 0.19: its tuner, which no run uses, imports xgboost where it is installed, and with that scipy and
    scikit-learn: a quarter of the whole import.
    """
    known = "xgboost" in sys.modules
    if not known:
        sys.modules["xgboost"] = None  # type: ignore[assignment] # so that importing it fails, which DeepSpeed expects
    try:
        yield
    finally:
        if not known:
            del sys.modules["xgboost"]


def _skip_probes_of_ops() -> None:
    """DeepSpeed 0.19: at the first start of a process group on a CPU, it compiles an op for shared-memory all-reduce.

    That takes about 45 s, for a collective that only its inference calls. DeepSpeed looks up in this table whether an
    op can be built here; a table that is there already also saves the compiler probes of all other ops.
    """
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__ = {"deepspeed_shm_comm": False}


def _skip_compiler_for_muon() -> None:
    """DeepSpeed 0.19: its ZeRO optimizers import its Muon, which torch's compiler decorates.

    No plan has that Muon, and importing all of torch's compiler takes 2 s.
    """
    import deepspeed.runtime.compiler

    deepspeed.runtime.compiler.compile = lambda: lambda function: function


def forget_groups() -> None:
    """DeepSpeed 0.19: `destroy` of an engine keeps its `mpu` and hpZ's group for every engine that comes after it."""
    import deepspeed.utils.groups

    deepspeed.utils.groups.mpu = None
    deepspeed.utils.groups._ZERO_PARAM_INTRA_PARALLEL_GROUP = None  # noqa: SLF001


@contextmanager
def before_average(engine: Any, look: Callable[[], None]) -> Iterator[None]:
    """DeepSpeed 0.19: at ZeRO 0 nothing is called between the backward pass and the average over data-parallel ranks.

    `look` is in this context, with the gradients of all micro-batches of a step, of this rank alone.
    """
    average = engine.allreduce_gradients

    def look_and_average(*arguments: Any, **options: Any) -> None:
        if engine.is_gradient_accumulation_boundary():
            look()
        average(*arguments, **options)

    engine.allreduce_gradients = look_and_average
    yield
    del engine.allreduce_gradients


def count_in_norm(wrapper: Any, counts: Mapping[torch.Tensor, float]) -> None:
    """DeepSpeed 0.19: its optimizers that shard count each parameter once in the norm that clips.

    wrapper: such an optimizer, which from now on counts parameters as often as `counts` says.
    """
    factors = {parameter: count**0.5 for parameter, count in counts.items()}
    if hasattr(wrapper, "get_grads_for_norm"):
        _count_whole_gradients(wrapper, factors)
        return
    of_slices, of_offloaded = wrapper.get_grad_norm_direct, wrapper.complete_grad_norm_calculation_for_cpu_offload

    def weigh_slices(gradients: Sequence[Any], parameters: Sequence[Any], *rest: Any) -> Any:
        slices = [each for each in gradients if not getattr(each, "_zero_padding", False)]
        pairs = zip(slices, parameters, strict=True)
        return of_slices([each * factors.get(parameter, 1.0) for each, parameter in pairs], parameters, *rest)

    def weigh_norms(parameters: Sequence[Any]) -> Any:
        norms = wrapper.norm_for_param_grads
        ids = {wrapper.get_param_id(each): factors[each] for each in parameters if each in factors}
        wrapper.norm_for_param_grads = {each: norm * ids.get(each, 1.0) for each, norm in norms.items()}
        try:
            return of_offloaded(parameters)
        finally:
            wrapper.norm_for_param_grads = norms

    wrapper.get_grad_norm_direct = weigh_slices
    wrapper.complete_grad_norm_calculation_for_cpu_offload = weigh_norms


def _count_whole_gradients(wrapper: Any, factors: Mapping[torch.Tensor, float]) -> None:
    """As `count_in_norm`, of BF16_Optimizer, which takes the norm of whole gradients."""
    theirs = wrapper.get_grads_for_norm

    def weigh_gradients(for_clipping: bool = False) -> Any:
        if for_clipping:
            return theirs(for_clipping=True)
        of_gradient = {
            id(gradient): factors[weight]
            for weights, gradients in zip(wrapper.bf16_groups, wrapper.fp32_groups_gradients, strict=True)
            for weight, gradient in zip(weights, gradients, strict=True)
            if weight in factors
        }
        counted, of_experts = theirs()
        return [each * of_gradient.get(id(each), 1.0) for each in counted], of_experts

    wrapper.get_grads_for_norm = weigh_gradients


def go_backward_once() -> None:
    """DeepSpeed 0.19: where a stage sends several tensors with gradients, its pipeline goes backward for each.

    Every time through all of the stage, whose segments it could not recompute twice.
    """
    from deepspeed.runtime.pipe import schedule
    from deepspeed.runtime.pipe.engine import PipelineEngine

    theirs = PipelineEngine._exec_backward_pass  # noqa: SLF001

    def backward(self: Any, buffer_id: int) -> None:
        buffers = self.pipe_buffers["outputs"]
        if isinstance(buffers[buffer_id], tuple):
            buffers[buffer_id] = _Together(buffers[buffer_id])
        theirs(self, buffer_id)

    if theirs is PipelineEngine._INSTRUCTION_MAP[schedule.BackwardPass]:  # noqa: SLF001
        PipelineEngine._INSTRUCTION_MAP[schedule.BackwardPass] = backward  # noqa: SLF001


class _Together:
    """What a stage has sent, to DeepSpeed as one tensor."""

    def __init__(self, sent: tuple[torch.Tensor, ...]) -> None:
        self._sent = [each for each in sent if each.is_floating_point()]

    def backward(self, gradient: Sequence[torch.Tensor]) -> None:
        import torch

        torch.autograd.backward(self._sent, list(gradient))


def bound_waits() -> None:
    """Torch 2.13: it waits for ever for a compilation that was killed and left its lock, which names nobody.

    Call before an extension is loaded: DeepSpeed's ops are extensions.
    """
    from torch.utils.file_baton import FileBaton

    FileBaton.wait = wait
    FileBaton.try_acquire = acquire


def skip_debug_symbols(builder: Any) -> None:
    """DeepSpeed 0.19: it compiles its ops with debug symbols, which take a third of the time.

    builder: the class of an op's builder. CPU_Adam: 145 s of a Zen 3 core instead of 226 s.
    """
    with_symbols = builder.cxx_args
    if with_symbols.__name__ != "without_symbols":

        def without_symbols(self: Any) -> list[str]:
            return [arg for arg in with_symbols(self) if arg != "-g"]

        builder.cxx_args = without_symbols


def reserving_handles(async_io: Any, reserve: Callable[[str, int], None]) -> Any:
    """DeepSpeed 0.19: on a full disk its reader and writer of files loses numbers and reports nothing.

    Returns the class of `async_io`, DeepSpeed's module, which from now on calls `reserve` with a path and the bytes
    that the file must have room for, before it writes.
    """
    if "reserves" not in vars(async_io.aio_handle):

        class Handle(async_io.aio_handle):
            reserves = True

            def async_pwrite(self, buffer: torch.Tensor, path: str, offset: int) -> int:
                reserve(path, offset + buffer.nbytes)
                return int(super().async_pwrite(buffer, path, offset))

        async_io.aio_handle = Handle
    return async_io.aio_handle

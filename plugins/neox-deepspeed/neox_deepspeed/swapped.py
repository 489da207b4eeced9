"""The tensors that ZeRO keeps in files, as tensors: for a checkpoint, which reads and writes them in place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from neox_core.errors import CheckpointError, ConfigError
from neox_deepspeed.files import reserve

if TYPE_CHECKING:
    from torch import Tensor, nn


@contextlib.contextmanager
def at_hand(wrapper: Any, model: nn.Module) -> Iterator[None]:
    """While it lasts, the tensors that are in files are memory that the files are mapped to: in as many bytes of the
    page cache as the host can spare. State that the optimizer has been given meanwhile goes to files at the end.
    """
    weights = list(_in_files(model.parameters()))
    for parameter in weights:
        swapper, part = parameter.nvme_swapper, parameter.ds_tensor
        part.data = _map(swapper.get_path(parameter, must_exist=True), part.ds_numel, swapper.dtype)
    for info in _infos(wrapper):
        for each in info.tensors:
            each.compute_tensor.data = _map(each.swap_path, info.numel(), info.dtype())
    try:
        yield
        for info in _infos(wrapper):
            _take_over(wrapper.optimizer_swapper, info)
    finally:
        for info in _infos(wrapper):
            info.release_memory()
        for parameter in weights:
            if parameter.ds_tensor.status.name == "NOT_AVAILABLE":
                parameter.ds_tensor.data = parameter.nvme_swapper.invalid_buffer.data


def mend_buffers(wrapper: Any, model: nn.Module) -> None:
    """Let DeepSpeed reuse buffers that it no longer needs; if there are too few, name the key to raise."""
    held = [parameter for parameter in model.parameters() if getattr(parameter, "nvme_swapper", None)]
    if held:
        _mend_weight_buffers(held[0].nvme_swapper, held)
        _mend_step(wrapper, held)
    manager = getattr(getattr(wrapper, "optimizer_swapper", None), "swap_buffer_manager", None)
    if manager is None:
        return
    allocate = manager.allocate

    def allocate_or_say(num_elems: int, count: int, dtype: torch.dtype) -> Any:
        buffers = allocate(num_elems=num_elems, count=count, dtype=dtype)
        if buffers is None:
            raise ConfigError(
                f"zero_optimization.offload_optimizer.buffer_count: {manager.count} is too few: a weight, its gradient"
                f" and this optimizer's state are {count} numbers",
                hint=f"buffer_count: {count}",
            )
        return buffers

    manager.allocate = allocate_or_say


def _mend_weight_buffers(swapper: Any, held: list[Any]) -> None:
    """A weight that is whole again needs no buffer for this rank's part; DeepSpeed 0.19.8 keeps it, and runs out."""
    swap_in = swapper.swap_in

    def swap_in_with_room(params: list[Any], async_op: bool = True, swap_in_buffers: Any = None) -> None:
        if swap_in_buffers is None and len(params) > swapper.available_swap_in_buffers():
            for each in held:
                if each.ds_status.name == "AVAILABLE" and each.ds_id in swapper.available_params:
                    if each.untyped_storage().data_ptr() == swapper.buffers.untyped_storage().data_ptr():
                        each.data = each.data.clone()  # of one rank, the part is the whole
                    status = each.ds_tensor.status
                    swapper.remove_partition_and_release_buffers([each])
                    each.ds_tensor.status = status  # else it would be read again ahead of its use
        if swap_in_buffers is None and len(params) > swapper.available_swap_in_buffers():
            raise ConfigError(
                f"zero_optimization.offload_param.buffer_count: {swapper.param_buffer_count} is too few for the weights"
                " that are used together",
                hint=f"buffer_count: {swapper.param_buffer_count + len(params)} or more",
            )
        swap_in(params, async_op=async_op, swap_in_buffers=swap_in_buffers)

    swapper.swap_in = swap_in_with_room


def _mend_step(wrapper: Any, held: list[Any]) -> None:
    """A weight that was read ahead and not used would get its update in the buffer, and not in the file."""
    partition_all = wrapper._partition_all_parameters  # noqa: SLF001  the first that a step does

    def partition_and_let_go() -> None:
        partition_all()
        list(_in_files(held))

    wrapper._partition_all_parameters = partition_and_let_go  # noqa: SLF001


def new_state(wrapper: Any, stepped: Any, state: str, dtype: torch.dtype) -> Tensor:
    """Zeros for a state of the optimizer, as many as `stepped` has; mapped to the state's own file where it has one."""
    swapper = getattr(wrapper, "optimizer_swapper", None)
    info = None if swapper is None else swapper.swap_params_info.get(stepped.ds_id)
    if info is None or dtype != info.dtype():
        return torch.zeros(stepped.numel(), dtype=dtype)
    name = f"{state}-{stepped.ds_id}.tensor.swp"  # as DeepSpeed names it
    return _room(swapper, info, f"{info.swap_folder}/{name}").zero_()


def _infos(wrapper: Any) -> list[Any]:
    swapper = getattr(wrapper, "optimizer_swapper", None)
    return [] if swapper is None else list(swapper.swap_params_info.values())


def _in_files(parameters: Iterable[Any]) -> Iterator[Any]:
    """The weights that are in files. What was read of them into buffers is let go: only a step changes them."""
    for parameter in parameters:
        part = getattr(parameter, "ds_tensor", None)
        if part is not None and part.final_location == "nvme":
            parameter.nvme_swapper.synchronize_reads()
            if part.status.name != "NOT_AVAILABLE":
                parameter.nvme_swapper.remove_partition_and_release_buffers([parameter])
            yield parameter


def _take_over(swapper: Any, info: Any) -> None:
    """Tell DeepSpeed's swapper which state the optimizer has added since the swapper last looked."""
    known = info.num_tensors()
    swapper._update_param_state_info(info, info.tensors[0].compute_tensor)  # noqa: SLF001
    for each in info.tensors[known:]:
        _room(swapper, info, each.swap_path).copy_(each.compute_tensor)


def _room(swapper: Any, info: Any, path: str) -> Tensor:
    reserve(path, swapper._io_aligned_numel(info.numel()) * info.dtype().itemsize)  # noqa: SLF001
    return _map(path, info.numel(), info.dtype())


def _map(path: str, count: int, dtype: torch.dtype) -> Tensor:
    try:
        if Path(path).stat().st_size < count * dtype.itemsize:
            raise CheckpointError(f"{path}: too short for what ZeRO keeps in it")
        return torch.from_file(path, shared=True, size=count, dtype=dtype)
    except OSError as error:
        raise CheckpointError(f"{path}: ZeRO's file cannot be read: {error.strerror or error}") from error

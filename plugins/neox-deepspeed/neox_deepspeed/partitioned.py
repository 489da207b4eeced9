"""ZeRO 3: the weights of a model of which each rank holds a part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from neox_core.errors import ConfigError
from neox_deepspeed.mpu import Place

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from neox_core.parallel.groups import Groups


def partition(model: nn.Module, config: dict[str, Any], groups: Groups, device: torch.device) -> None:
    """Leave this rank its part of every weight, on `device` or where `offload_param` says, and put buffers on `device`.

    One weight after the other, so a device never holds the whole model. Collective.
    """
    import deepspeed

    deepspeed.init_distributed(dist_init_required=False)  # takes the process group that is there
    offload = config["zero_optimization"].get("offload_param", {})
    _check_buffers(model, offload, groups)
    deepspeed.zero.Init(
        module=model,
        data_parallel_group=groups.data if groups.tensor.size > 1 else None,
        mpu=Place(groups) if groups.tensor.size > 1 else None,
        config_dict_or_path=config,
        remote_device=offload.get("device"),
        pin_memory=offload.get("pin_memory", False),
    )
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))


def _check_buffers(model: nn.Module, offload: dict[str, Any], groups: Groups) -> None:
    largest = max(-(-parameter.numel() // groups.data_size) for parameter in model.parameters())
    if offload.get("device") == "nvme" and largest > offload["buffer_size"]:
        raise ConfigError(
            f"zero_optimization.offload_param.buffer_size: a rank's part of the largest weight has {largest} elements,"
            f" and a buffer {offload['buffer_size']}",
            hint=f"buffer_size: {largest} or more",
        )


def whole_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every weight by name, gathered from the ranks for as long as it is looked at. Collective."""
    import deepspeed

    for name, parameter in model.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter], enabled=hasattr(parameter, "ds_tensor")):
            yield name, parameter.detach()


def refresh(wrapper: Any) -> None:
    """Let go of the small parameters that every rank keeps whole: the next use gathers the parts that were written.

    Not here: where they are whole before the first step and that step overflows, DeepSpeed 0.19.8 raises in the second,
    whose fetches do not fit those that it has recorded.
    """
    kept = getattr(wrapper, "persistent_parameters", ())
    if kept:
        kept[0].partition(kept)
        wrapper.invalidate_secondary_tensor()  # hpZ's second copy, of the weights as they were

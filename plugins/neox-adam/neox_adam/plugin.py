"""Offers Adam in four implementations."""

from neox_core.api import Component, hookimpl

ALL_STAGES = (0, 1, 2, 3)
MOMENTS = (2, 0)
OPS = (("adam_step", "neox_adam.optim:adam_step"),)


@hookimpl
def neox_optimizers() -> list[Component]:
    return [
        Component(
            "Adam",
            "neox_adam.optim:adam",
            "neox_adam.settings:AdamSettings",
            summary="Adam (arXiv:1412.6980), with decoupled weight decay unless adam_w_mode is false",
            zero_stages=ALL_STAGES,
            state_numbers=MOMENTS,
            ops=OPS,
        ),
        Component(
            "AdamW",
            "neox_adam.optim:adamw",
            "neox_adam.settings:AdamWSettings",
            summary="Adam with decoupled weight decay (arXiv:1711.05101)",
            zero_stages=ALL_STAGES,
            state_numbers=MOMENTS,
            ops=OPS,
        ),
        Component(
            "CPU_Adam",
            "neox_adam.host:cpu_adam",
            "neox_adam.host_settings:CPUAdamSettings",
            summary="Adam on the host by DeepSpeed's vectorised code, also for ZeRO's offload_optimizer",
            needs=("deepspeed",),
            zero_stages=ALL_STAGES,
            state_numbers=MOMENTS,
        ),
        Component(
            "CPU_torch_adam",
            "neox_adam.host:cpu_torch_adam",
            "neox_adam.host_settings:CPUTorchAdamSettings",
            summary="AdamW on the host by torch, also for ZeRO's offload_optimizer",
            zero_stages=ALL_STAGES,
            state_numbers=MOMENTS,
        ),
    ]

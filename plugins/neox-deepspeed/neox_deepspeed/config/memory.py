"""What ZeRO holds besides the model's state: weights that it gathers, and buffers that gradients are collected in."""

from math import prod

from neox_plain.api import Extra

from neox_core.contracts.architecture import Shapes
from neox_core.plan.runfile import RunPlan
from neox_deepspeed.config.sections.zero import ZeroBlock


def beside(plan: RunPlan, zero: ZeroBlock, held: Shapes) -> Extra:
    """Of a rank with parameters of the shapes `held`.

    A GPU keeps the whole buffer of `reduce_bucket_size` elements; on a CPU only what is written of it takes memory. The
    buffer of ZeRO 3 is never given back, and what is reduced at once is copied in the order of ranks. That of ZeRO 1
    holds the gradients themselves. ZeRO 3 keeps what it has gathered while the rest of the step uses it again within
    `stage3_max_reuse_distance` elements.
    """
    stage = plan.optim.zero_stage
    if stage == 0:
        return Extra()
    elements, bytes_each = sum(map(prod, held.values())), plan.precision.bytes_each
    gpu = plan.cluster.device == "cuda"
    filled = min(elements, zero.reduce_bucket_size)
    buffer = bytes_each * (zero.reduce_bucket_size if gpu else filled) if zero.contiguous_gradients else 0
    if stage == 3:
        live = min(elements, zero.stage3_max_live_parameters)
        return Extra(bytes_each * live, buffer, early=True, copied=bytes_each * filled)
    buffer *= 2 if gpu and zero.overlap_comm else 1
    beside_gradients = buffer if stage == 2 else max(0, buffer - bytes_each * elements)
    return Extra(0, beside_gradients, early=gpu)

"""The memory that a run is expected to take on its fullest rank, by use: closed forms for plain torch and for ZeRO.

Not included: memory of the libraries (about 0.5 GiB on a GPU), buffers of NCCL, and fragmentation.
"""

from math import prod

from attrs import frozen

from neox_core.contracts.architecture import Shapes
from neox_core.contracts.engine import Sharding
from neox_core.plan.runfile import RunPlan


@frozen
class Memory:
    """Bytes on the device of the fullest rank; host: bytes that are offloaded. state None: the optimizer does not
    declare it.

    gathered: weights that ZeRO 3 has whole during a pass. buffers: that gradients are collected in. total: the most at
    one time, which is less than the sum of all parts.
    """

    weights: int
    gradients: int
    masters: int
    state: int | None
    activations: int
    host: int
    gathered: int
    buffers: int
    total: int

    def in_words(self) -> str:
        """The most at one time, and the parts."""
        parts = {"weights": self.weights, "gradients": self.gradients, "fp32 masters": self.masters}
        parts |= {"optimizer": self.state or 0, "activations and loss": self.activations}
        parts |= {"gathered weights": self.gathered, "buffers of gradients": self.buffers}
        listed = [f"{name} {amount(size)}" for name, size in parts.items() if size]
        listed += ["without the optimizer's state, whose size it does not declare"] if self.state is None else []
        listed += [f"{amount(self.host)} on the host"] if self.host else []
        return f"about {amount(self.total)} a rank: {', '.join(listed)}"


def amount(size: int) -> str:
    """Bytes in GiB or MiB."""
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.1f} MiB"


@frozen
class Extra:
    """Bytes that an engine holds besides: see `Memory` for gathered and buffers.

    early: whether the buffers are there during the forward pass too. copied: of what is reduced at once.
    """

    gathered: int = 0
    buffers: int = 0
    early: bool = False
    copied: int = 0


def expected_memory(
    plan: RunPlan,
    sharded: Sharding,
    held: Shapes,
    activations: int,
    state_numbers: tuple[float, float] | None,
    extra: Extra | None = None,
) -> Memory:
    """As `contracts.engine.EnginePlanner.memory`; sharded: what the engine does with the model's state.

    A step is fullest where the last backward pass starts, where it ends, or where the optimizer steps. Gradients of
    earlier passes are there at the start; those of this one take the room that activations leave.
    """
    extra = extra or Extra()
    elements = sum(map(prod, held.values()))
    edges = sum(map(sum, held.values()))
    bytes_each, stage, share = plan.precision.bytes_each, plan.optim.zero_stage, plan.batch.data_parallel
    stepped = share if stage >= 1 else 1
    # ZeRO steps fp32 copies of slices, in every precision; without ZeRO fp32 weights are stepped in place.
    copies = plan.precision.dtype != "fp32" or (stage >= 1 and not sharded.owns_parameters)
    masters = 4 * elements // stepped if copies else 0
    in_fp32 = masters  # the gradients of the masters
    state = (
        None if state_numbers is None else int(4 * (state_numbers[0] * elements + state_numbers[1] * edges)) // stepped
    )
    weights = bytes_each * elements // (share if stage >= 3 else 1)
    host = 0
    if sharded.offload_optimizer:
        host, masters, state, in_fp32 = masters + (state or 0), 0, 0, 0
    if sharded.offload_parameters:
        host, weights = host + weights, 0
    gradients = bytes_each * elements // (share if stage >= 2 and not sharded.owns_parameters else 1)
    before = gradients if plan.batch.gradient_accumulation > 1 or stage >= 3 else 0
    always = weights + masters + (state or 0)
    fullest = max(
        before + activations + extra.gathered + (extra.buffers if extra.early else 0),
        gradients + extra.buffers + extra.copied,
        gradients + in_fp32 + (extra.buffers if extra.early and stage >= 3 else 0),
    )
    return Memory(
        weights, gradients, masters, state, activations, host, extra.gathered, extra.buffers, always + fullest
    )

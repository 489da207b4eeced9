"""What ZeRO holds, by hand: 1000 numbers in bf16 on 4 ranks, with Adam's two numbers of state each."""

from pathlib import Path
from typing import Any

from attrs import evolve
from neox_author.testing.plans import example_plan
from neox_deepspeed.config.memory import beside
from neox_deepspeed.config.sections.zero import ZeroBlock
from neox_plain.api import expected_memory

from neox_core.contracts.engine import Sharding

HELD = {"weight": (10, 100)}
ACTIVATIONS = 5000


def fullest(stage: int, device: str = "cpu", passes: int = 1, **zero: Any) -> int:
    """Bytes of the fullest rank at one time."""
    plan = example_plan(Path("run"))
    plan = evolve(
        plan,
        cluster=evolve(plan.cluster, device=device),
        batch=evolve(plan.batch, data_parallel=4, gradient_accumulation=passes),
        optim=evolve(plan.optim, zero_stage=stage),
        precision=evolve(plan.precision, dtype="bf16"),
    )
    extra = beside(plan, ZeroBlock(stage=stage, **zero), HELD)
    return expected_memory(plan, Sharding(stage=stage), HELD, ACTIVATIONS, (2, 0), extra).total


def test_gradients_take_the_room_of_activations() -> None:
    """Weights 2000, masters 4000, state 8000; then the most of activations, and of gradients in bf16 and fp32."""
    assert fullest(0) == 14_000 + max(ACTIVATIONS, 2000 + 4000)
    assert fullest(0, passes=2) == 14_000 + 2000 + ACTIVATIONS


def test_zero_1_collects_gradients_in_its_buffer() -> None:
    assert fullest(1) == 2000 + 3000 + max(ACTIVATIONS, 2000 + 1000)
    assert fullest(1, "cuda", reduce_bucket_size=4000) == 5000 + ACTIVATIONS + (8000 - 2000)


def test_zero_2_copies_gradients_to_a_buffer() -> None:
    """Of which a CPU has what is written: the 2000 of all gradients. A GPU has it from the start, twice to overlap."""
    assert fullest(2) == 5000 + ACTIVATIONS
    assert fullest(2, "cuda", reduce_bucket_size=3000) == 5000 + ACTIVATIONS + 6000
    assert fullest(2, "cuda", reduce_bucket_size=3000, overlap_comm=True) == 5000 + ACTIVATIONS + 12_000
    assert fullest(2, "cuda", contiguous_gradients=False) == 5000 + ACTIVATIONS


def test_zero_3_gathers_weights_and_keeps_its_buffer() -> None:
    """500 of weights and of gradients; 2000 gathered, or as many as may be live; 2000 of the buffer."""
    assert fullest(3) == 500 + 3000 + 500 + ACTIVATIONS + 2000 + 2000
    assert fullest(3, stage3_max_live_parameters=300) == 500 + 3000 + 500 + ACTIVATIONS + 600 + 2000
    assert fullest(3, reduce_bucket_size=400) == 500 + 3000 + 500 + ACTIVATIONS + 2000 + 800

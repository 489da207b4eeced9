"""What DeepSpeed measures and prints of itself, as far as the plan asks for it."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from neox_core.plan.runfile import RunPlan

_TIMERS = {"forward": "fwd", "backward": "bwd", "backward_inner": "bwd_inner", "backward_allreduce": "bwd_allreduce"}
_TIMERS |= {"step": "step"}


def set_voice(plan: RunPlan, *, starting: bool) -> None:
    """Let through the engine's lines that the plan asks for; all of a part are of one level, so others come along."""
    wanted = plan.engine.get("dump_state") if starting else _prints_steps(plan.engine)
    logger = logging.getLogger("DeepSpeed")
    logger.setLevel(logging.INFO if plan.debug or wanted else logging.ERROR)
    for handler in logger.handlers:  # made with a level of their own, from the environment
        handler.setLevel(logging.NOTSET)


def _prints_steps(engine: dict[str, Any]) -> bool:
    return engine.get("steps_per_print") is not None or bool(engine.get("comms_logger", {}).get("verbose"))


def timings(engine: Any) -> dict[str, float]:
    """`elapsed_time_ms_<part>` of the last step, for each part that the engine has timed; empty without timers."""
    timed = engine.get_wall_clock_timers()
    return {f"elapsed_time_ms_{part}": float(timed[name]) for part, name in _TIMERS.items() if name in timed}


def forget_forward(engine: Any) -> None:
    """After an evaluation: its forward passes have run the engine's timers, which are for training."""
    for name in engine.engine_timers.forward_timers:
        engine.timers(name).reset()


@contextlib.contextmanager
def counted(engine: Any, profile_step: int | None) -> Iterator[None]:
    """Around a forward pass: in the step to profile, all of it is counted.

    DeepSpeed begins inside the outermost module's own hook, too late for what that module does by itself (the output
    layer and the loss) and for its time. And it counts what goes through `torch.nn.functional`, not oneDNN's operators.
    """
    if profile_step is None or engine.global_steps != profile_step or engine.global_rank != 0:
        yield
        return
    profiler, backend = engine.flops_profiler, torch.backends.mkldnn
    profiler.start_profile()
    profiler.start_profile = _started_already
    onednn, backend.enabled = backend.enabled, False
    try:
        yield
    finally:
        backend.enabled = onednn
        del profiler.start_profile


def _started_already(ignore_list: Any = None) -> None:
    """What the engine calls in place of a second start."""


def print_collectives(plan: RunPlan) -> None:
    """The table of `comms_logger`, from rank 0. Collective where the plan has that block."""
    if "comms_logger" in plan.engine:
        import deepspeed.comm

        deepspeed.comm.log_summary()

"""What DeepSpeed measures and prints of itself, as far as the plan asks for it."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

import torch

from neox_core.terminal import Own, echo

if TYPE_CHECKING:
    from neox_core.plan.runfile import RunPlan

_TIMERS = {"forward": "fwd", "backward": "bwd", "backward_inner": "bwd_inner", "backward_allreduce": "bwd_allreduce"}
_TIMERS |= {"step": "step"}


_CLEAR = Own("\r\x1b[2K")
"""Empties the line of a terminal that the cursor is in."""


class EchoHandler(logging.Handler):
    """Writes a log by `echo`, so above a progress bar. stream: None: the standard output as it is then; else one where
    a line shows the part of a start, which is drawn again below.
    """

    def __init__(self, stream: TextIO | None, formatter: logging.Formatter | None) -> None:
        super().__init__()
        self.stream, self.formatter = stream, formatter

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; one that cannot be written is reported as `logging` does."""
        try:
            with contextlib.redirect_stdout(self.stream or sys.stdout):
                echo(_CLEAR if self.stream is not None and self.stream.isatty() else "", self.format(record))
        except Exception:  # noqa: BLE001  as every handler: a log line never ends a run
            self.handleError(record)


def set_voice(plan: RunPlan, *, starting: bool) -> None:
    """Let through the engine's lines that the plan asks for; all of a part are of one level, so others come along."""
    wanted = plan.engine.get("dump_state") if starting else _prints_steps(plan.engine)
    logger = logging.getLogger("DeepSpeed")
    logger.setLevel(logging.INFO if plan.debug or wanted else logging.ERROR)
    for handler in [*logger.handlers]:
        if type(handler) is logging.StreamHandler or isinstance(handler, EchoHandler):
            logger.removeHandler(handler)  # its own writes into a bar's line, at a level of the environment
            logger.addHandler(EchoHandler(sys.stdout if starting else None, handler.formatter))


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

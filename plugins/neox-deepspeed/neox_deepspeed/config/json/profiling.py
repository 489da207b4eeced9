"""The part of the engine's JSON that measures: a pure function of its section."""

from typing import Any

from attrs import asdict

from neox_deepspeed.config.sections.profiling import ProfilingSection


def profiling_json(profiling: ProfilingSection) -> dict[str, Any]:
    """Every switch with its value, and a block only where it is on: `comms_logger` acts by being there.

    The engine takes the forward and backward times of a profile from the timers of the breakdown, so the one switches
    on the other.
    """
    engine: dict[str, Any] = {
        "steps_per_print": profiling.steps_per_print,
        "wall_clock_breakdown": profiling.wall_clock_breakdown or profiling.flops_profiler.enabled,
        "dump_state": profiling.dump_state,
    }
    if profiling.flops_profiler.enabled:
        engine["flops_profiler"] = asdict(profiling.flops_profiler)
    if profiling.comms_logger.enabled:
        engine["comms_logger"] = asdict(profiling.comms_logger)
    return engine

"""Rules of what the engine measures."""

from collections.abc import Iterator

from neox_core.api import Problem
from neox_core.config.schema.sections.parallelism import ParallelismSection
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import rule
from neox_deepspeed.config.sections.profiling import ProfilingSection


@rule("flops_profiler.enabled", "wall_clock_breakdown")
def profile_needs_timers(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A profile needs the timers of wall-clock-breakdown."""
    profiling = config.section(ProfilingSection)
    off = config.is_set("wall_clock_breakdown") and not profiling.wall_clock_breakdown
    if profiling.flops_profiler.enabled and off:
        yield config.problem(
            "is switched on anyway: flops_profiler needs its timers", "wall_clock_breakdown", "remove it", "warning"
        )


@rule("comms_logger.prof_ops", "comms_logger.prof_all")
def timed_collectives_chosen_once(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """prof_ops selects collectives only where prof_all is false."""
    comms = config.section(ProfilingSection).comms_logger
    if not comms.enabled:
        return
    if comms.prof_all and comms.prof_ops:
        yield config.problem("does nothing with prof_all", "comms_logger.prof_ops", "prof_all: false")
    if not comms.prof_all and not comms.prof_ops:
        yield config.problem(
            "times nothing: prof_all is false and prof_ops is empty", "comms_logger", "prof_ops: [all_reduce]"
        )


@rule("wall_clock_breakdown", "flops_profiler.enabled", "pipe_parallel_size")
def pipelines_are_not_timed(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """DeepSpeed 0.19.8 starts a pipeline's timers twice, which raises, and prints no profile of it."""
    profiling = config.section(ProfilingSection)
    if config.section(ParallelismSection).pipe_parallel_size < 2:
        return
    hint = "measure with pipe-parallel-size: 1"
    if profiling.flops_profiler.enabled:
        yield config.problem("the engine cannot profile a pipeline", "flops_profiler.enabled", hint)
    elif profiling.wall_clock_breakdown:
        yield config.problem("the engine cannot time a pipeline", "wall_clock_breakdown", hint)

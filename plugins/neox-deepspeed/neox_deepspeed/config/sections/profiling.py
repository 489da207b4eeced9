"""What the engine measures and prints about itself. All of it costs time and is off by default."""

from typing import Any, Literal

from attrs import frozen

from neox_core.api import setting
from neox_core.config.schema.checks import above, at_least, not_empty

Collective = Literal[
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "inference_all_reduce",
    "irecv",
    "isend",
    "monitored_barrier",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "send",
]
"""The operations of `deepspeed.comm` that are timed."""


def _output(default: Any, *, help: str, **more: Any) -> Any:
    """A setting that changes only what is printed."""
    return setting(default, help=help, changes="output", origin="deepspeed", **more)


@frozen
class FlopsProfilerBlock:
    """Parameters, multiply-accumulates and latency of each module, once."""

    enabled: bool = setting(False, help="Profile one step.", changes="speed", origin="deepspeed")
    profile_step: int = _output(
        1, help="The step to profile: the one after this many finished steps.", unit="steps", check=at_least(0)
    )
    module_depth: int = _output(
        -1, help="Depth of the modules that are added up; -1: the innermost.", check=at_least(-1)
    )
    top_modules: int = _output(1, help="Number of the largest modules to list.", check=above(0))
    detailed: bool = _output(True, help="Print the figures of every module, not only the sums.")
    output_file: str | None = _output(None, help="File for the profile. Default: the terminal.", check=not_empty)


@frozen
class CommsLoggerBlock:
    """Count, size and time of the engine's collectives, summed up at the end of the run."""

    enabled: bool = setting(
        False, help="Time collectives; each then waits for the device.", changes="speed", origin="deepspeed"
    )
    verbose: bool = _output(False, help="Print a line for every collective.")
    prof_all: bool = setting(True, help="Time every kind of collective.", changes="speed", origin="deepspeed")
    debug: bool = _output(False, help="Name the caller of each collective.")
    prof_ops: tuple[Collective, ...] = setting(
        (), help="The kinds to time when prof_all is false.", changes="speed", origin="deepspeed"
    )


@frozen
class ProfilingSection:
    """What the engine measures and prints about itself."""

    steps_per_print: int | None = _output(
        None,
        help="Steps between the engine's own lines of step, skipped, lr and momentum. Default: none.",
        unit="steps",
        check=above(0),
    )
    wall_clock_breakdown: bool = setting(
        False,
        help="Time forward, backward and update of every step; each then waits for the device.",
        changes="speed",
        origin="deepspeed",
    )
    dump_state: bool = _output(False, help="Print the engine's attributes when it has started.")
    flops_profiler: FlopsProfilerBlock = setting(
        FlopsProfilerBlock(), help="Block of the profile of one step.", changes="speed", origin="deepspeed"
    )
    comms_logger: CommsLoggerBlock = setting(
        CommsLoggerBlock(), help="Block of the timing of collectives.", changes="speed", origin="deepspeed"
    )

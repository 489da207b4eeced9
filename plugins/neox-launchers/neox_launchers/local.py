"""The `local` launcher: says which process to start, and with which environment. Light: runs on the host."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from neox_core.contracts.host import LaunchCommand
from neox_core.errors import UsageError
from neox_core.plan.runfile import RunPlan
from neox_launchers.settings import LocalSettings

KEEP_BYTES = 2**31 - 1
"""glibc keeps freed memory up to this; the largest value that its parser takes for all three thresholds."""


def local(plan: RunPlan, run_file: Path, settings: LocalSettings) -> LaunchCommand:
    """All ranks on this machine. Raises UsageError when the plan has more than one."""
    hosts = plan.cluster.hosts
    if len(hosts) != 1:
        raise UsageError(
            f"the local launcher starts ranks on this machine only; the plan has {len(hosts)} hosts",
            hint="choose another `launcher`, or leave out `hostfile`",
        )
    logs = Path(settings.log_dir) if settings.log_dir else run_file.parent / "logs"
    argv = (sys.executable, "-m", "neox_launchers.elastic", str(run_file), str(logs))
    return LaunchCommand(argv, _environment(plan))


def _environment(plan: RunPlan) -> dict[str, str]:
    env = {"TOKENIZERS_PARALLELISM": "false"}  # its threads do not survive the fork of a data worker
    threads = plan.cluster.threads_per_rank
    if plan.cluster.device == "cpu":
        threads = threads or max(1, _cores() // plan.cluster.world_size)
        env["DS_ACCELERATOR"] = "cpu"
        # A step frees and asks again for the same large tensors. By default glibc hands them back to the system each
        # time, and the page faults of the next step cost up to half of it.
        env["MALLOC_MMAP_THRESHOLD_"] = str(KEEP_BYTES)
        env["MALLOC_TRIM_THRESHOLD_"] = str(KEEP_BYTES)
        env["MALLOC_TOP_PAD_"] = str(64 * 2**20)
        env["MALLOC_MMAP_MAX_"] = "0"
    if threads is not None:
        env["OMP_NUM_THREADS"] = str(threads)
    return env


def _cores() -> int:
    """Cores that this process may use, which in a container are fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

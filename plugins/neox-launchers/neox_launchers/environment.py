"""What the ranks of a plan find in their environment. Light."""

from __future__ import annotations

import os
from collections.abc import Mapping

from neox_core.errors import UsageError
from neox_core.plan.runfile import Host, RunPlan
from neox_launchers.nvlink import nvlink_order

KEEP_BYTES = 2**31 - 1
"""glibc keeps freed memory up to this; the largest value that its parser takes for all three thresholds."""


def environment(plan: RunPlan) -> dict[str, str]:
    """Variables of every rank, on top of those of its host."""
    env = {"TOKENIZERS_PARALLELISM": "false"}  # its threads do not survive the fork of a data worker
    threads = plan.cluster.threads_per_rank
    if plan.cluster.device == "cpu":
        threads = threads or max(1, _cores() // max(host.slots for host in plan.cluster.hosts))
        env["DS_ACCELERATOR"] = "cpu"
        # Tensors of the start have pages of their own, which leave no holes in the heap. After the first step the rank
        # takes all from the heap (`neox_core.run.loop`), which then keeps its end.
        env["MALLOC_MMAP_THRESHOLD_"] = str(2**20)
        env["MALLOC_TRIM_THRESHOLD_"] = str(KEEP_BYTES)
        env["MALLOC_TOP_PAD_"] = str(64 * 2**20)
    if threads is not None:
        env["OMP_NUM_THREADS"] = str(threads)
    return env


def visible_devices(host: Host, environ: Mapping[str, str], topology: str | None = None) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES where a host's ranks do not take its first devices; of those that are visible, if it is set.

    topology: of `nvidia-smi topo -m`, to have linked devices side by side. Raises UsageError when fewer devices are
    visible than the plan counts on, or when they have names where topology needs numbers.
    """
    wanted, now = host.devices or tuple(range(host.slots)), environ.get("CUDA_VISIBLE_DEVICES")
    if topology is None and wanted == tuple(range(host.slots)):
        return {}
    if now is not None:
        names = now.split(",")
        if max(wanted) >= len(names):
            raise UsageError(
                f"{host.name} shows {len(names)} devices, and device {max(wanted)} is asked for",
                hint=f"CUDA_VISIBLE_DEVICES is {now} there",
            )
        if topology is None:
            return {"CUDA_VISIBLE_DEVICES": ",".join(names[each] for each in wanted)}
        if not all(name.strip().isdecimal() for name in names):
            raise UsageError("detect_nvlink_pairs needs numbers in CUDA_VISIBLE_DEVICES", hint=f"it is {now}")
        wanted = tuple(int(names[each]) for each in wanted)
    order = wanted if topology is None else nvlink_order(topology, wanted)
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, order))}


def _cores() -> int:
    """Cores that this process may use, which in a container are fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

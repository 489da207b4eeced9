"""What other packages may import of this one: what a run takes in another layout, and what it finds on this machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import evolve

from neox_core.contracts.architecture import ModelSize
from neox_plan.gpus import GPUS
from neox_plan.layout import layout_of, with_layout
from neox_plan.search import FULL, Candidate, candidate, room

if TYPE_CHECKING:
    from neox_core.plan.resolve import Resolved
    from neox_plan.gpus import Gpu

__all__ = ["Candidate", "foreseen", "gpu_here", "room_here"]

LIBRARIES_ON_HOST = 1 << 30
"""Bytes that Python and its libraries take of a rank on a CPU, at most."""


def foreseen(
    resolved: Resolved, *, micro_batch: int, accumulation: int, zero: int, gpu: Gpu | None = None
) -> Candidate | None:
    """A resolved run on the same ranks with another batch and stage of ZeRO: memory, and with a GPU the time of a step.

    None where the size of the model is not known before a start.
    """
    if not isinstance(resolved.size, ModelSize) or resolved.memory is None:
        return None
    batch = resolved.plan.batch
    whole = evolve(batch, train_batch=micro_batch * accumulation * batch.data_parallel)
    layout = evolve(layout_of(resolved.plan), micro_batch=micro_batch, zero=zero)
    varied = with_layout(evolve(resolved.plan, batch=whole), layout)
    return None if varied is None else candidate(resolved, varied, gpu)


def gpu_here() -> Gpu | None:
    """The GPU of this machine, by nvidia-smi; None where it names none that is known."""
    asked = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return known_gpu(said)


def known_gpu(said: str) -> Gpu | None:
    """The GPU of the first line that nvidia-smi says, `NAME, MIB`, with the memory that it says."""
    name, _, memory = said.partition("\n")[0].rpartition(",")
    found = next((gpu for gpu in GPUS.values() if re.search(rf"\b{gpu.name}\b", name)), None)
    return evolve(found, gib=int(memory) / 1024) if found is not None and memory.strip().isdigit() else None


def room_here(resolved: Resolved, gpu: Gpu | None) -> float | None:
    """Bytes that each rank of a run on this machine can fill; None where they are not known."""
    cluster = resolved.plan.cluster
    if cluster.device == "cuda":
        return None if gpu is None else room(gpu)
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        free = next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    return FULL * free / max(host.slots for host in cluster.hosts) - LIBRARIES_ON_HOST

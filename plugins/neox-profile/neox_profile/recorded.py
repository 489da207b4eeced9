"""What records steps: torch.profiler with the memory of a GPU, or marks for NVIDIA's nsys."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import torch
from torch.autograd.profiler import emit_nvtx
from torch.profiler import ProfilerActivity, profile, record_function

OPS = 10
"""Operations of the table."""
MOST_ALLOCATIONS = 100_000
"""Number of newest entries that the memory snapshot keeps."""


class Recorder(Protocol):
    """`begin(step)`, then `next(step)` before each further step, and `finish()`; steps count from 1."""

    def begin(self, step: int) -> None: ...
    def next(self, step: int) -> None: ...
    def finish(self) -> None: ...


class Torch:
    """Operations of the CPU and kernels of a GPU, with a range for each step; on a GPU also what allocated memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        on_gpu = [ProfilerActivity.CUDA] if device.type == "cuda" else []
        self.profile = profile(activities=[ProfilerActivity.CPU, *on_gpu])
        self.range: Any = None

    def begin(self, step: int) -> None:
        if self.device.type == "cuda":
            torch.cuda.memory._record_memory_history(max_entries=MOST_ALLOCATIONS)  # noqa: SLF001
        self.profile.start()
        self._enter(step)

    def next(self, step: int) -> None:
        self.range.__exit__(None, None, None)
        self._enter(step)

    def finish(self) -> None:
        self.range.__exit__(None, None, None)
        self.profile.stop()  # waits for the device

    def write_trace(self, path: Path) -> None:
        """For ui.perfetto.dev. The name ends in .gz, so it is compressed."""
        self.profile.export_chrome_trace(str(path))

    def write_memory(self, path: Path) -> None:
        """For pytorch.org/memory_viz. Nothing is recorded afterwards."""
        torch.cuda.memory._dump_snapshot(str(path))  # noqa: SLF001
        torch.cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001

    def _enter(self, step: int) -> None:
        self.range = record_function(f"step {step}")
        self.range.__enter__()


class Nsys:
    """A range for each step and each operation, between cudaProfilerStart and cudaProfilerStop.

    For `nsys profile --capture-range=cudaProfilerApi neox train ...`.
    """

    def __init__(self) -> None:
        self.operations = emit_nvtx()

    def begin(self, step: int) -> None:
        torch.cuda.profiler.start()
        self.operations.__enter__()
        torch.cuda.nvtx.range_push(f"step {step}")

    def next(self, step: int) -> None:
        torch.cuda.nvtx.range_pop()
        torch.cuda.nvtx.range_push(f"step {step}")

    def finish(self) -> None:
        torch.cuda.nvtx.range_pop()
        self.operations.__exit__(None, None, None)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def most_expensive(recorder: Torch) -> list[dict[str, Any]]:
    """The OPS operations that took most time without what they call: name, calls, and ms on the CPU and the device."""
    rows = [
        {
            "name": each.key,
            "calls": each.count,
            "cpu_ms": round(each.self_cpu_time_total / 1e3, 3),
            "device_ms": round(each.self_device_time_total / 1e3, 3),
        }
        for each in recorder.profile.key_averages()
        if not each.key.startswith("step ")
    ]
    by = "device_ms" if recorder.device.type == "cuda" else "cpu_ms"
    return sorted(rows, key=lambda row: -row[by])[:OPS]

"""The peak that MFU is measured against: given, known by the device's name, or measured on a CPU."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import torch
from attrs import frozen

from neox_core.model.matmul import linear

if TYPE_CHECKING:
    from neox_core.plan.runfile import PrecisionPlan

# Dense TFLOP/s with 16-bit inputs, and with fp32 inputs without TF32; from the vendors' data sheets.
KNOWN = {
    "B200": (2250.0, 80.0),
    "H200": (989.0, 67.0),
    "GH200": (989.0, 67.0),
    "H100 PCIe": (756.0, 51.0),
    "H100": (989.0, 67.0),
    "A100": (312.0, 19.5),
    "L40S": (362.0, 91.6),
    "L4": (121.0, 30.3),
    "A10": (125.0, 31.2),
    "V100": (125.0, 15.7),
    "T4": (65.0, 8.1),
    "RTX 4090": (165.0, 82.6),
    "RTX 3090": (71.0, 35.6),
    "MI300X": (1307.0, 163.4),
}


@frozen
class Peak:
    """flops: of one rank, per second; None when nothing is known. source: said once, with the first log."""

    flops: float | None
    source: str


def find_peak(given_tflops: float | None, precision: PrecisionPlan, device: torch.device) -> Peak:
    """`given_tflops` if set, else by the GPU's name, else the best of a few matmuls on the CPU (about 0.2 s)."""
    name = precision.autocast or precision.dtype
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]
    if given_tflops is not None:
        return Peak(given_tflops * 1e12, f"{given_tflops:g} TFLOP/s a rank, as given by peak-tflops")
    if device.type == "cuda":
        gpu = torch.cuda.get_device_name(device)
        known = next((peaks for part, peaks in KNOWN.items() if re.search(rf"\b{part}\b", gpu)), None)
        if known is None:
            return Peak(None, f"unknown for {gpu}: set peak-tflops to see MFU")
        tflops = known[1] if name == "fp32" else known[0]
        return Peak(tflops * 1e12, f"{tflops:g} TFLOP/s a rank, dense {name} of {gpu}")
    flops = measure_matmul(dtype)
    threads = torch.get_num_threads()
    return Peak(flops, f"{flops / 1e12:.3g} TFLOP/s a rank, a {name} matmul measured with {threads} threads")


def measure_matmul(dtype: torch.dtype, size: int = 768, seconds: float = 0.15) -> float:
    """FLOP/s of the quickest of several [size, size] matmuls on this CPU, by the way that the model takes."""
    left, right = torch.ones(size, size, dtype=dtype), torch.ones(size, size, dtype=dtype)
    best, end = float("inf"), time.perf_counter() + seconds
    with torch.no_grad():
        linear(left, right)
        while best == float("inf") or time.perf_counter() < end:  # once at least, also where all is slow
            start = time.perf_counter()
            linear(left, right)
            best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best

"""The peak FLOP/s of a rank: known by the name of the device, or measured on a CPU."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import torch

from neox_core.contracts.engine import Peak
from neox_plain.gpu_peaks import PEAKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from neox_core.plan.runfile import PrecisionPlan

    Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

AGREEMENT = 0.8
"""Smallest ratio of the slowest to the fastest measurement on a CPU; below it, the machine is busy with other work."""
STEADY, FEWEST = 0.97, 3
"""The same ratio, of so many measurements or more, at which no other one follows."""
PAUSE_S = 0.015


def find_peak(precision: PrecisionPlan, device: torch.device, product: Product) -> Peak:
    """By the name of the GPU, or by matmuls on the CPU, which take 0.1 s, and 0.2 s on a busy machine.

    precision: of the matmuls
    device: of this rank
    product: (x, weight) -> x @ weight.T, as the model computes it
    """
    name = precision.autocast or precision.dtype
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]
    if device.type == "cuda":
        gpu = torch.cuda.get_device_name(device)
        known = next((peaks for part, peaks in PEAKS.items() if re.search(rf"\b{part}\b", gpu)), None)
        if known is None:
            return Peak(None, f"the peak of {gpu} is not known; set peak-tflops")
        tflops = known[1] if name == "fp32" else known[0]
        return Peak(tflops * 1e12, f"{tflops:g} TFLOP/s a rank, dense {name} of {gpu}")
    rates = measure_matmul(dtype, product)
    slowest, best, how = min(rates), max(rates), f"a {name} matmul measured with {torch.get_num_threads()} threads"
    if slowest < AGREEMENT * best:
        spread = f"{slowest / 1e12:.2g} to {best / 1e12:.2g} TFLOP/s"
        return Peak(None, f"the machine is busy, {how} varies from {spread}; set peak-tflops")
    return Peak(best, f"{best / 1e12:.3g} TFLOP/s a rank, {how}", measured=True)


def measure_matmul(
    dtype: torch.dtype, product: Product, size: int = 768, looks: int = 6, seconds: float = 0.4
) -> list[float]:
    """FLOP/s of [size, size] matmuls on this CPU: the fastest of each measurement.

    There are at most `looks` measurements, 0.015 s apart; from the third on they stop once they are steady, or after
    `seconds`.
    """
    left, right = torch.ones(size, size, dtype=dtype), torch.ones(size, size, dtype=dtype)
    rates: list[float] = []
    with torch.no_grad():
        product(left, right)
        end = time.perf_counter() + seconds
        while True:
            rates.append(2 * size**3 / _quickest(product, left, right))
            enough = min(rates) >= STEADY * max(rates) or time.perf_counter() > end
            if len(rates) >= looks or (len(rates) >= FEWEST and enough):
                return rates
            time.sleep(PAUSE_S)


def _quickest(product: Product, left: torch.Tensor, right: torch.Tensor, seconds: float = 0.015) -> float:
    """Seconds of the fastest product, of as many as fit into `seconds`, at least one."""
    best, end = float("inf"), time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < end:
        start = time.perf_counter()
        product(left, right)
        best = min(best, time.perf_counter() - start)
    return best

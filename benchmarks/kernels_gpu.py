"""Kernels on a GPU against torch.compile, and Liger-Kernel where it is installed: `python benchmarks/kernels_gpu.py`.

Forward and backward on the shapes of a 7B model in bf16, each with a cold cache. Bandwidth is what the op must read and
write at least, as a share of a measured copy; cross-entropy is compared by time and peak memory instead.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from neox_author.api import installed_ops
from neox_kernels.api import times_of
from neox_triton.plugin import target_of
from results import append_row
from torch import Tensor

from neox_core.hooks.component import load_path
from neox_core.hooks.loader import load_plugins

OPS = ("rms_norm", "layer_norm", "scale_norm", "rotary_pair", "geglu", "swiglu", "bias_gelu", "bias_dropout_add")
DTYPE = torch.bfloat16


def copy_bandwidth(device: torch.device) -> float:
    """Bytes a second that a large copy reads and writes."""
    source = torch.empty(2**30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    seconds = []
    for _ in range(20):
        begin.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    return 2 * 2**30 / sorted(seconds)[10]


def least_bytes(compute: Callable[..., Any], arguments: tuple[Any, ...]) -> int:
    """What forward and backward read and write where nothing is read twice: inputs, results, and their gradients."""
    returned = compute(*arguments)
    results = [returned] if isinstance(returned, Tensor) else list(returned)
    inputs = [each for each in arguments if isinstance(each, Tensor)]
    forward = sum(each.nbytes for each in (*inputs, *results))
    return forward + sum(each.nbytes for each in (*results, *(one for one in inputs if one.requires_grad), inputs[0]))


def liger(op: str) -> Callable[..., Any] | None:
    """Liger-Kernel's implementation with our arguments; None where it has none, or is not installed."""
    try:
        importlib.metadata.version("liger-kernel")
    except importlib.metadata.PackageNotFoundError:
        return None
    ops = import_module("liger_kernel.ops")
    if op == "rms_norm":
        return lambda x, w, eps, _under: ops.LigerRMSNormFunction.apply(x, w, eps)
    if op == "layer_norm":
        compute: Callable[..., Any] = ops.LigerLayerNormFunction.apply
        return compute
    if op in ("geglu", "swiglu"):
        function = ops.LigerGELUMulFunction if op == "geglu" else ops.LigerSiLUMulFunction
        return lambda x: function.apply(*reversed([each.contiguous() for each in x.chunk(2, -1)]))
    if op == "cross_entropy":
        return lambda h, w, labels, _chunk: ops.LigerFusedLinearCrossEntropyFunction.apply(h, w, labels)[0]
    return None


def measure(device: torch.device) -> None:
    """Add the rows of every op and implementation."""
    references = {op.name: load_path(op.reference) for op in installed_ops(load_plugins().registry)}
    gpu = torch.cuda.get_device_name(device)
    bandwidth = copy_bandwidth(device)
    append_row("kernels_gpu", f"copy, {gpu}", "GB/s", [bandwidth / 1e9] * 2)
    for op in (*OPS, "cross_entropy"):
        kernel = load_path(target_of(op))
        arguments = next(iter(kernel.examples(DTYPE, device, large=True)))
        others = {"neox": kernel, "torch.compile": torch.compile(references[op]), "liger": liger(op)}
        moved = least_bytes(kernel, arguments)
        for name, compute in others.items():
            if compute is None:
                continue
            case = f"{op}, bf16, {gpu}: {name}"
            torch.cuda.reset_peak_memory_stats()
            seconds = times_of(compute, arguments)
            append_row("kernels_gpu", case, "ms", [each * 1e3 for each in seconds])
            if op == "cross_entropy":
                append_row("kernels_gpu", case, "peak GiB", [torch.cuda.max_memory_allocated() / 2**30] * 2)
            else:
                append_row("kernels_gpu", case, "% of copy", [100 * moved / each / bandwidth for each in seconds])


def main() -> int:
    if not torch.cuda.is_available():
        sys.stderr.write("there is no GPU that torch can use here\n")
        return 1
    measure(torch.device("cuda"))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Block-sparse attention on a GPU, forward and backward: the Triton kernel, FlexAttention and the reference under the
same masks, next to torch's dense causal attention.

    python benchmarks/sparse_gpu.py [--rounds 20] [--longest 65536]

Batch 1, 16 heads of 128, bf16; the layout `local` with blocks of 64 tokens sees 512, 2,048 or 8,192 tokens back. Time
in proportion to the blocks of a layout would be the same microseconds a block in each row. Rows go to results.csv.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from functools import partial

import torch
from neox_gpt.api import LayoutShape
from neox_gpt.attention.blocked import blocked_attention
from neox_gpt.attention.scores import Request
from neox_gpt.attention.sparse import BlockTable
from neox_sparse_attention.flex import KERNEL as FLEX
from neox_sparse_attention.local import local
from neox_sparse_attention.settings import LocalSettings
from neox_triton.block_sparse_attention import KERNEL as TRITON
from results import append_row
from torch.nn import functional as F

HEADS, WIDTH, BLOCK = 16, 128, 64
LENGTHS, BACK = (8192, 16384, 32768, 65536), (512, 2048, 8192)


def times(compute: Callable[[], torch.Tensor], inputs: list[torch.Tensor], rounds: int) -> list[float]:
    """Milliseconds of each round, after three that are not counted."""
    found = []
    for _ in range(rounds + 3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        torch.autograd.grad(compute().sum(), inputs)
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end))
    return found[3:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--longest", type=int, default=LENGTHS[-1])
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("a GPU is needed")
    for seq in (each for each in LENGTHS if each <= arguments.longest):
        drawn = (torch.randn(1, HEADS, seq, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        inputs = [each.requires_grad_() for each in drawn]
        took = times(partial(F.scaled_dot_product_attention, *inputs, is_causal=True), inputs, arguments.rounds)
        append_row("sparse_gpu", f"seq {seq}: dense", "ms", took)
        for back in BACK:
            settings = LocalSettings(block=BLOCK, num_sliding_window_blocks=2 * (back // BLOCK) + 1)
            layout = local(LayoutShape(seq // BLOCK, HEADS), settings)
            request = Request(WIDTH**-0.5, blocks=BlockTable(layout, BLOCK, "cuda"))
            for name, op in (("triton", TRITON), ("flex", FLEX), ("reference", blocked_attention)):
                took = times(partial(op, *inputs, request), inputs, arguments.rounds)
                append_row("sparse_gpu", f"seq {seq}, {back} back: {name}", "ms", took)
                each = statistics.median(took) * 1e3 / int(layout.sum())
                append_row("sparse_gpu", f"seq {seq}, {back} back: {name}", "us a block", [each])


if __name__ == "__main__":
    main()

"""What the compiled code of `tiles.h` can compute: its users ask here."""

from __future__ import annotations

import torch
from torch import Tensor

KEEPS_NAN = "-fno-finite-math-only"


def in_memory(*tensors: Tensor) -> bool:
    """Whether they are plain ones on a CPU; a fake one has no memory."""
    plain = Tensor, torch.nn.Parameter
    return all(type(each) in plain and each.device.type == "cpu" for each in tensors)


def multiplies_pairs() -> bool:
    """Whether the processor multiplies pairs of bf16."""
    return bool(torch.cpu._is_avx512_bf16_supported())  # noqa: SLF001


def leaves_bf16_to_torch() -> bool:
    """Where a processor multiplies whole tiles of bf16 (AMX), torch has the faster products."""
    return bool(torch.cpu._is_amx_tile_supported())  # noqa: SLF001

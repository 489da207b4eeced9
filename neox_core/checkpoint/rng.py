"""Random generators of a rank: seeded at the start, stored in checkpoints as tensors."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor


def seed_rank(seed: int, rank: int, device: torch.device) -> None:
    """Seed every generator of this process. Ranks draw different numbers, so their dropout differs."""
    mixed = int(np.random.SeedSequence((seed, rank)).generate_state(1, np.uint64)[0])
    random.seed(mixed)
    np.random.seed(mixed % 2**32)
    torch.manual_seed(mixed % 2**63)
    if device.type == "cuda":
        torch.cuda.manual_seed(mixed % 2**63)


def read_rng(device: torch.device) -> dict[str, Tensor]:
    """State of the generators of Python, NumPy, torch and, if it has one, the device."""
    version, words, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state()
    states = {
        "python": torch.from_numpy(np.array((version, *words))),
        "python_gauss": torch.tensor([] if gauss is None else [gauss], dtype=torch.float64),
        "numpy": torch.from_numpy(np.append(keys.astype(np.int64), (position, has_gauss))),
        "numpy_gauss": torch.tensor([cached], dtype=torch.float64),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def write_rng(states: dict[str, Tensor], device: torch.device) -> None:
    """Restore the states from `read_rng`. Raises ValueError or RuntimeError for an invalid state."""
    version, *words = states["python"].tolist()
    gauss = states["python_gauss"].tolist()
    random.setstate((version, tuple(words), gauss[0] if gauss else None))
    *keys, position, has_gauss = states["numpy"].tolist()
    cached = states["numpy_gauss"].tolist()[0]
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(states["torch"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restore the random generators after the block, so that a monitor that draws a name does not change a run.

    rich draws when it is imported, so a resumed run would otherwise draw other numbers than an uninterrupted one.
    Raises ValueError where the block leaves gradients off, or another default dtype, which are restored too.
    """
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    gradients, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    try:
        yield
        if torch.is_grad_enabled() != gradients or torch.get_default_dtype() != dtype:
            raise ValueError("it leaves torch.set_grad_enabled() or torch.set_default_dtype() changed")
    finally:
        torch.set_grad_enabled(gradients)
        torch.set_default_dtype(dtype)
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(cpu)

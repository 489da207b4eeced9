"""Numbers that DeepSpeed 0.19.6 computed on a CPU with its own functions, and the inputs that it was given."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor


def numbers(seed: int, *shape: int) -> Tensor:
    """The same numbers on any machine: from -3.2 to 3.2, without a pattern."""
    places = torch.arange(math.prod(shape), dtype=torch.int64)
    return (((places * 7919 + seed * 104729) % 2003 - 1001).float() / 317).reshape(shape)


@pytest.fixture(scope="session")
def reference() -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = json.loads(
        (Path(__file__).parent / "data/deepspeed-0.19.6.json").read_text()
    )
    return found


@pytest.fixture
def given() -> Callable[..., Tensor]:
    return numbers

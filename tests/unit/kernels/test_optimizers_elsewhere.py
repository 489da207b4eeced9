"""25 steps against the numbers of the classes of GPT-NeoX and DeepSpeed: docs/optimizers.md has the table."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from neox_author.testing import build, load_only
from torch import Tensor

NUMBERS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "data/optimizers.json").read_text(encoding="utf-8"))
SHAPES = ((5, 7), (6,))
ADAM = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
SM3 = [(0.0, 0.0), (0.95, 0.0), (0.95, 0.9)]
CASES = [
    *(
        (
            f"SM3 beta {beta} momentum {momentum}",
            "neox-sm3",
            "SM3",
            {"beta": beta, "momentum": momentum, "fused": fused},
        )
        for beta, momentum in SM3
        for fused in (True, False)
    ),
    *(
        ("Lion", "neox-lion", "Lion", {"lr": 1e-2, "betas": (0.9, 0.98), "weight_decay": 0.1, "fused": fused})
        for fused in (True, False)
    ),
    ("FusedAdam adam_w_mode True", "neox-adam", "Adam", ADAM),
    ("FusedAdam adam_w_mode True", "neox-adam", "AdamW", ADAM),
    ("FusedAdam adam_w_mode False", "neox-adam", "Adam", {**ADAM, "adam_w_mode": False}),
    ("FusedAdam adam_w_mode True", "neox-adam", "Adam", {**ADAM, "torch_adam": True}),
    ("DeepSpeedCPUAdam adamw_mode True", "neox-adam", "CPU_torch_adam", ADAM),
    (
        "DeepSpeedCPUAdagrad",
        "neox-torch-optim",
        "Adagrad",
        {"lr": 1e-2, "eps": 1e-10, "weight_decay": 0.1},
    ),
]


def start(number: int, shape: tuple[int, ...]) -> Tensor:
    return torch.cos(0.7 * torch.arange(math.prod(shape), dtype=torch.float64) + number).float().view(shape)


def gradient(step: int, number: int, shape: tuple[int, ...]) -> Tensor:
    """Some are exactly 0."""
    places = torch.arange(math.prod(shape), dtype=torch.float64)
    values = torch.sin(1.3 * places + 0.9 * step + number) * (1 + step % 7) / 2
    return values.masked_fill(values.abs() < 0.2, 0.0).float().view(shape)


@pytest.mark.parametrize(("theirs", "plugin", "name", "settings"), CASES, ids=lambda each: str(each)[:60])
def test_25_steps_equal_theirs(theirs: str, plugin: str, name: str, settings: dict[str, Any]) -> None:
    parameters = [torch.nn.Parameter(start(number, shape)) for number, shape in enumerate(SHAPES)]
    entry = load_only(plugin).find("optimizer", name)
    optimizer = entry.load()([{"params": parameters}], build(entry, **settings))
    for step in range(25):
        for number, (parameter, shape) in enumerate(zip(parameters, SHAPES, strict=True)):
            parameter.grad = gradient(step, number, shape)
        optimizer.step()
    found = torch.cat([each.detach().flatten() for each in parameters])
    torch.testing.assert_close(found, torch.tensor(NUMBERS[theirs]), rtol=1e-6, atol=1e-6)

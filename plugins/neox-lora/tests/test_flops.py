"""The operations that a run states against those that torch counts in a forward and a backward pass."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from neox_gpt.api import build_model
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups

EXACT = BuildContext(torch.device("cpu"), torch.float64, Groups(None, None, 0, 1), seed=1)


@pytest.mark.parametrize(
    "sets",
    [
        (),
        ("lora.enabled=true",),
        ("lora.enabled=true", "lora.rank=3", "lora.alpha=5", "lora.dropout=0.3"),
        ("lora.enabled=true", "lora.target-modules=[attention.output]"),
        ("lora.enabled=true", "lora.target-modules=[mlp.down]"),
        ("lora.enabled=true", "lora.target-modules=[layers.1.*]", "lora.rank=16"),
        ("lora.enabled=true", "gpt-j-residual=true", "no-weight-tying=false"),
        ("lora.enabled=true", "num-layers=4", "num-unique-layers=2", "activation=gelu"),
        ("lora.enabled=true", "qk-norm=head", "use-bias-in-mlp=true"),
    ],
)
def test_flops_are_those_that_torch_counts(sets: tuple[str, ...], resolve: Callable[..., Any]) -> None:
    """In float64, whose attention goes by the math path, so that all products are seen; exactly."""
    model = build_model(resolve(*sets).plan.model, 64, EXACT)
    tokens = torch.arange(32).view(2, 16)
    keys = torch.arange(2)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model.loss(tokens, tokens, keys).backward()
    assert counter.get_total_flops() / tokens.numel() == model.flops_per_token

"""How often a tensor-parallel rank adds up the residual stream with others in a forward and backward pass."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from attrs import evolve
from neox_gpt.build import build_model
from neox_gpt.testing import example_decoder

from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.parallel.tensor import TensorParallel
from neox_core.plan.runfile import ComponentRef

LAYERS, ENDS = 3, 2
"""ENDS: of the embedding, and of the gradient of the output layer."""

NORM = "neox_norms.rmsnorm:RMSNorm", "neox_norms.settings:RMSNormSettings"
PLAN = evolve(
    example_decoder(),
    num_layers=LAYERS,
    hidden_size=32,
    num_attention_heads=4,
    intermediate_size=64,
    seq_length=24,
    max_position_embeddings=24,
    norm=ComponentRef("norm", "any", "neox-any", "0.1.0", *NORM),
    activation=ComponentRef("activation", "any", "neox-any", "0.1.0", "neox_activations.gelu:Gelu"),
    position=ComponentRef("position", "any", "neox-any", "0.1.0", "neox_positions.none:NoPosition"),
)


def sums(monkeypatch: pytest.MonkeyPatch, *, sharded: bool = False, **changes: Any) -> tuple[int, int]:
    """(those of one tensor like the residual stream, those of two) of a rank of two, whose sums change nothing.

    sharded: the plan asks for ZeRO 3 and compiled layers; this test does not compile them.
    """
    plan = evolve(PLAN, compile="auto" if sharded else False, **changes)
    groups = Groups(None, None, 0, 1, TensorParallel(rank=0, size=2))
    context = BuildContext(torch.device("cpu"), torch.float32, groups, 1, host_first=sharded)
    model = build_model(plan, 16, context)
    found: list[tuple[int, ...]] = []
    monkeypatch.setattr(dist, "all_reduce", lambda x, *_, **__: found.append(tuple(x.shape)))
    tokens = torch.zeros(2, plan.seq_length, dtype=torch.int64)
    keys = torch.zeros(2, dtype=torch.int64) if plan.hidden_dropout else None
    model.loss(tokens, tokens, keys).backward()
    one, two = ((batch, plan.seq_length, plan.hidden_size) for batch in (2, 4))
    return found.count(one), found.count(two)


def test_the_parallel_form_has_half_of_the_sums_of_the_serial_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sums(monkeypatch) == (4 * LAYERS + ENDS, 0)
    assert sums(monkeypatch, parallel_residual=True) == (LAYERS + ENDS, LAYERS)
    assert sums(monkeypatch, parallel_residual=True, shared_norm=True) == (2 * LAYERS + ENDS, 0)


@pytest.mark.parametrize("changes", [{"hidden_dropout": 0.1}, {"norm_place": "both"}, {"sharded": True}], ids=str)
def test_what_looks_at_each_sublayer_has_its_sum(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    assert sums(monkeypatch, parallel_residual=True, **changes) == (4 * LAYERS + ENDS, 0)

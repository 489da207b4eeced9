"""Exports of pruned models: what `related_modules` leaves out, and what snip_momentum leaves."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from neox_gpt.api import FoldedReader, build_model
from torch import Tensor

from neox_core.checkpoint.read import read_weights
from neox_core.parallel.context import BuildContext

AT = "compression_training"
TOKENS = torch.arange(64).view(4, 16)


def pruned(row: str, ratio: float) -> tuple[str, ...]:
    """Rows of mlp.up and heads, and what follows them."""
    rows = f"g: {{params: {{dense_ratio: {ratio}}}, modules: [mlp.up], related_modules: [[mlp.down]]}}"
    heads = "g: {params: {dense_ratio: 0.5}, modules: [attention.output], related_modules: [[attention.qkv]]}"
    return (
        f"{AT}.row_pruning.shared_parameters={{enabled: true, method: {row}, schedule_offset: 1}}",
        f"{AT}.row_pruning.different_groups={{{rows}}}",
        f"{AT}.head_pruning.shared_parameters={{enabled: true, num_heads: 4}}",
        f"{AT}.head_pruning.different_groups={{{heads}}}",
    )


@pytest.mark.parametrize("method", ["l1", "topk"])
@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_related_modules_shrink(
    resolve: Callable[..., Any],
    trained: Callable[..., Path],
    folded: Callable[..., dict[str, Tensor]],
    context: BuildContext,
    method: str,
    activation: str,
) -> None:
    """The smaller model has the shapes of what stays, and computes what the whole one does with its zeros."""
    resolved = resolve(*pruned(method, 0.3), f"activation={activation}", "intermediate-size=40")
    plan = resolved.plan
    checkpoint = trained(plan)
    reader, weights = FoldedReader(checkpoint, plan.model), folded(plan, checkpoint)
    sides = 2 if activation == "swiglu" else 1
    shapes = {name: tuple(each.shape) for name, each in weights.items()}
    assert shapes == reader.shapes("weight")
    for layer in range(2):
        assert shapes[f"layers.{layer}.mlp.up.weight"] == (12 * sides, 32)
        assert shapes[f"layers.{layer}.mlp.up.bias"] == (12 * sides,)
        assert shapes[f"layers.{layer}.mlp.down.weight"] == (32, 12)
        assert shapes[f"layers.{layer}.attention.qkv.weight"] == (2 * 3 * 8, 32)
        assert shapes[f"layers.{layer}.attention.output.weight"] == (32, 2 * 8)
    own = reader.plan
    assert (own.num_attention_heads, own.head_dim, own.intermediate_size) == (2, 8, 12)
    assert plan.model.exported(resolved.config) == own  # as told before the start
    whole = build_model(plan.model, 64, context, read_weights(checkpoint)).eval()
    small = build_model(own, 64, context, weights).eval()
    with torch.no_grad():
        torch.testing.assert_close(small.logits(TOKENS), whole.logits(TOKENS), rtol=0, atol=2e-6)


def test_value_and_gate_go_together(resolve: Callable[..., Any], trained: Callable[..., Path]) -> None:
    """Of a gated activation the pairs of rows with the largest sums stay: counted by hand from the stored weights."""
    at = f"{AT}.row_pruning"
    group = "g: {params: {dense_ratio: 0.25}, modules: [mlp.up], related_modules: [[mlp.down]]}"
    sets = (f"{at}.shared_parameters={{enabled: true}}", f"{at}.different_groups={{{group}}}", "activation=swiglu")
    stored = read_weights(trained(resolve(*sets, "intermediate-size=40").plan, steps=1))
    for layer in range(2):
        mask = stored[f"layers.{layer}.mlp.up.changes.compression.row_mask"].view(2, 40)
        assert torch.equal(mask[0], mask[1])
        assert int(mask[0].sum()) == 10


@pytest.mark.parametrize(("pattern", "ratio"), [("4x1", 0.25), ("2:4", 0.5), ("2x2", 0.4)])
def test_density_of_snip_momentum(
    resolve: Callable[..., Any],
    trained: Callable[..., Path],
    folded: Callable[..., dict[str, Tensor]],
    pattern: str,
    ratio: float,
) -> None:
    """Counted in the weights of an export: the share that stays in all layers together, in whole blocks."""
    shared = f"method: snip_momentum, schedule_offset_end: 3, block_pattern: '{pattern}', dense_ratio: {ratio}"
    shared += ", excluded_modules: [layers.0.mlp.down]"
    plan = resolve(f"{AT}.sparse_pruning.shared_parameters={{enabled: true, {shared}}}", "train-iters=6").plan
    checkpoint = trained(plan, steps=6)
    found, stored = folded(plan, checkpoint), read_weights(checkpoint)
    layers = [name.split(".changes")[0] for name in stored if name.endswith("snip_mask")]
    assert len(layers) == 7
    kept = {name: found[f"{name}.weight"] != 0 for name in layers}
    number = sum(each.numel() for each in kept.values())
    zeros = number - sum(int(each.sum()) for each in kept.values())
    block = {"4x1": 4, "2x2": 4, "2:4": 2}[pattern]
    assert abs(zeros - (1 - ratio) * number) < block
    for each in kept.values():
        if pattern == "2:4":
            assert set(each.view(-1, 4).sum(1).tolist()) == {2}
        else:
            rows, inputs = map(int, pattern.split("x"))
            blocks = each.view(each.shape[0] // rows, rows, each.shape[1] // inputs, inputs).sum((1, 3))
            assert set(blocks.flatten().tolist()) == {0, 4}
    assert pattern == "2:4" or len({float(each.float().mean()) for each in kept.values()}) > 1


def test_the_zeros_are_fixed_at_the_end(resolve: Callable[..., Any], trained: Callable[..., Path]) -> None:
    shared = "enabled: true, method: snip_momentum, schedule_offset_end: 2, dense_ratio: 0.5"
    plan = resolve(f"{AT}.sparse_pruning.shared_parameters={{{shared}}}", "train-iters=8").plan
    early = read_weights(trained(plan, steps=3))
    late = read_weights(trained(plan, steps=6))
    masks = [name for name in early if name.endswith("snip_mask")]
    assert masks
    assert all(torch.equal(early[name], late[name]) for name in masks)


def test_an_export_is_of_a_family_that_has_the_smaller_model(
    resolve: Callable[..., Any], trained: Callable[..., Path], tmp_path: Path
) -> None:
    """GPT-NeoX's published models give the heads all of the width, which fewer heads no longer do."""
    at = f"{AT}.head_pruning"
    group = "g: {modules: [attention.output], related_modules: [[attention.qkv]]}"
    sets = (f"{at}.shared_parameters={{enabled: true, num_heads: 4}}", f"{at}.different_groups={{{group}}}")
    checkpoint = trained(resolve(*sets, "norm=layernorm", "gpt-j-residual=true").plan)
    argv = ["checkpoint", "export-hf", str(checkpoint), "--out", str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-m", "neox_core", *argv], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert (config["model_type"], config["num_attention_heads"], config["head_dim"]) == ("neox", 2, 8)

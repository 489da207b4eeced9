"""Compressed models that were trained: what is counted in their weights, and what is refused before a start."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from neox_gpt.api import FoldedReader, LinearChange, build_model
from torch import Tensor

from neox_core.checkpoint.read import read_weights
from neox_core.errors import ConfigError, NeoxError
from neox_core.parallel.context import BuildContext
from neox_core.plan.exports import exports

TOKENS = torch.arange(64).view(4, 16)
AT = "compression_training"


def on(technique: str, groups: str, shared: str = "") -> tuple[str, ...]:
    return (
        f"{AT}.{technique}.shared_parameters={{enabled: true, {shared}}}",
        f"{AT}.{technique}.different_groups={{{groups}}}",
    )


HEADS = "g: {modules: [attention.output], related_modules: [[attention.qkv]]}"


def snip(shared: str) -> tuple[str, ...]:
    return on("sparse_pruning", "", f"method: snip_momentum, schedule_offset_end: 2, {shared}")


def weights(groups: str, shared: str = "") -> tuple[str, ...]:
    return on("weight_quantization", groups, f"quantize_weight_in_forward: true, {shared}")


def test_distinct_values_of_trained_weights(
    resolve: Callable[..., Any], trained: Callable[..., Path], folded: Callable[..., dict[str, Tensor]]
) -> None:
    """Each group has its own bits and scales; the optimizer kept whole weights; the rest is as it was trained."""
    groups = "a: {params: {start_bits: 6, target_bits: 3, quantization_period: 1}, modules: [attention]}"
    groups += r", b: {params: {start_bits: 8, target_bits: 2}, modules: ['layers.[01].mlp.up']}"
    plan = resolve(*weights(groups, "quantize_groups: 4")).plan
    checkpoint = trained(plan)
    whole, rounded = read_weights(checkpoint), folded(plan, checkpoint)
    for name, weight in rounded.items():
        most = 8 if "attention." in name and name.endswith("weight") else 3 if name.endswith("mlp.up.weight") else None
        assert torch.equal(weight, whole[name]) == (most is None)
        if most:
            assert {len(part.unique()) for part in weight.view(4, -1)} <= set(range(2, most + 1))
            assert len(whole[name].unique()) > weight.numel() // 2


def test_folded_computes_the_same(
    resolve: Callable[..., Any],
    trained: Callable[..., Path],
    folded: Callable[..., dict[str, Tensor]],
    context: BuildContext,
) -> None:
    plan = resolve(*weights("g: {params: {start_bits: 5, target_bits: 4}}", "quantization_type: asymmetric")).plan
    checkpoint = trained(plan)
    compressed = build_model(plan.model, 64, context, read_weights(checkpoint)).eval()
    reader = FoldedReader(checkpoint, plan.model)
    plain = build_model(reader.plan, 64, context, folded(plan, checkpoint)).eval()
    torch.testing.assert_close(compressed.logits(TOKENS), plain.logits(TOKENS), rtol=0, atol=2e-6)
    whole = {name: each for name, each in read_weights(checkpoint).items() if "changes" not in name}
    assert (
        build_model(reader.plan, 64, context, whole).eval().logits(TOKENS) - plain.logits(TOKENS)
    ).abs().max() > 0.01


def test_rounded_inputs_cannot_be_folded(resolve: Callable[..., Any], trained: Callable[..., Path]) -> None:
    plan = resolve(*on("activation_quantization", "g: {}")).plan
    with pytest.raises(
        ConfigError, match=r"the model change compression cannot be folded into the weights of layers.0"
    ):
        FoldedReader(trained(plan), plan.model)


def test_rounds_once_a_step_or_in_every_pass(
    resolve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, context: BuildContext
) -> None:
    """`quantize_weight_in_forward`, by counting how often one layer's weight is rounded in two micro-batches."""
    calls: list[int] = []
    from neox_compression.quantization import weights as module_of_weights

    real = module_of_weights.round_weight
    monkeypatch.setattr(
        module_of_weights, "round_weight", lambda *args, **named: calls.append(1) or real(*args, **named)
    )
    for in_forward, wanted in (("true", 4), ("false", 2)):
        sets = on("weight_quantization", "g: {modules: [layers.0.mlp.up]}", f"quantize_weight_in_forward: {in_forward}")
        plan = resolve(*sets, "bf16.enabled=true", "engine=deepspeed").plan
        model = build_model(plan.model, 64, context).train()
        calls.clear()
        for step in range(2):
            for module in model.modules():
                if isinstance(module, LinearChange):
                    module.at_step(step)
            for _ in range(2):
                model.loss(TOKENS, TOKENS).backward()
        assert len(calls) == wanted


def test_changes_of_bits_are_told(
    resolve: Callable[..., Any], capsys: pytest.CaptureFixture[str], trained: Callable[..., Path]
) -> None:
    group = "g: {params: {target_bits: 6, quantization_period: 2}, modules: [layers.1.mlp.down]}"
    trained(resolve(*weights(group, "quantize_verbose: true, schedule_offset: 1")).plan)
    assert capsys.readouterr().err.splitlines() == [
        f"layers.1.mlp.down: weights have {bits} bits from step {step} on" for bits, step in ((8, 1), (7, 3))
    ]


@pytest.mark.parametrize("method", ["l1", "topk"])
def test_density_of_trained_weights(
    resolve: Callable[..., Any],
    method: str,
    trained: Callable[..., Path],
    folded: Callable[..., dict[str, Tensor]],
    context: BuildContext,
) -> None:
    """Counted: the share of numbers, of rows with their biases, and of heads that stays. Masks of l1 are fixed."""
    sets = on(
        "sparse_pruning", "g: {params: {dense_ratio: 0.3}, modules: [qkv]}", f"method: {method}, schedule_offset: 2"
    )
    sets += on(
        "row_pruning", "g: {params: {dense_ratio: 0.25}, modules: [mlp.up]}", f"method: {method}, schedule_offset: 1"
    )
    sets += on("head_pruning", "g: {params: {dense_ratio: 0.5}, modules: [attention.output]}", "num_heads: 4")
    plan = resolve(*sets).plan
    checkpoint = trained(plan)
    pruned, stored = folded(plan, checkpoint), read_weights(checkpoint)
    for layer in range(2):
        at = f"layers.{layer}"
        assert int(pruned[f"{at}.attention.qkv.weight"].count_nonzero()) == -(-3 * 96 * 32 // 10)
        rows = pruned[f"{at}.mlp.up.weight"].any(1)
        assert int(rows.sum()) == 32
        assert not pruned[f"{at}.mlp.up.bias"][~rows].any()
        assert pruned[f"{at}.mlp.up.bias"][rows].any()
        columns = pruned[f"{at}.attention.output.weight"].view(32, 4, 8).any(2)
        assert columns.any(0).tolist() == columns.all(0).tolist()
        assert int(columns[0].sum()) == 2
        if method == "l1":
            mask = stored[f"{at}.attention.qkv.changes.compression.sparse_mask"]
            assert torch.equal(pruned[f"{at}.attention.qkv.weight"] != 0, mask != 0)
    compressed = build_model(plan.model, 64, context, stored).eval()
    plain = build_model(FoldedReader(checkpoint, plan.model).plan, 64, context, pruned).eval()
    with torch.no_grad():
        torch.testing.assert_close(compressed.logits(TOKENS), plain.logits(TOKENS), rtol=0, atol=2e-6)


def test_masks_of_l1_are_of_the_weights_at_the_offset(
    resolve: Callable[..., Any], tmp_path: Path, trained: Callable[..., Path]
) -> None:
    """What is largest after two steps stays, whatever becomes of it."""
    early = read_weights(trained(resolve(f"save={tmp_path}/early").plan, 2))
    sets = on("sparse_pruning", "g: {params: {dense_ratio: 0.5}, modules: [mlp.up]}", "schedule_offset: 2")
    stored = read_weights(trained(resolve(*sets).plan))
    for layer in range(2):
        sizes = early[f"layers.{layer}.mlp.up.weight"].abs()
        wanted = sizes > sizes.flatten().kthvalue(sizes.numel() // 2).values
        assert torch.equal(stored[f"layers.{layer}.mlp.up.changes.compression.sparse_mask"] != 0, wanted)


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (on("weight_quantization", "g: {}"), r"quantize_weight_in_forward: false rounds the half-precision copy"),
        (weights("g: {params: {target_bits: 9}}"), r"g.params.target_bits: 9 is above start_bits 8"),
        (
            weights("g: {params: {target_bits: 2}}", "rounding: stochastic"),
            "target_bits: 2 needs quantization_type sym",
        ),
        (
            weights("g: {}", "quantize_groups: 7"),
            "quantize_groups: the 96 x 32 numbers of layers.0.attention.qkv cannot",
        ),
        (weights("g: {}, h: {modules: [mlp.up]}"), "h.modules: layers.0.mlp.up is in the group 'g' too"),
        (weights("g: {modules: [mlp.left]}"), "g.modules: matches no linear layer of a block, such as layers.0.att"),
        (weights("g: {modules: ['(a|a)*']}"), "must not repeat a group"),
        (weights("g: {modules: ['.*.*.*.*x']}"), "must repeat something at most 3 times"),
        (weights("g: {modules: ['a[']}"), "must be a part of a name or a regular expression"),
        (weights(""), "is enabled but names no layers"),
        (on("activation_quantization", "g: {params: {bits: 3}}"), "bits"),
        (
            (*on("activation_quantization", "g: {}"), "num-unique-layers=1", "pipe-parallel-size=2", "num_gpus=2"),
            "keeps the range of a layer's inputs, and stages of the pipeline share layers",
        ),
        (weights("g: {}", "quantizer_kernel: true"), "quantizer_kernel: cannot be true: torch rounds"),
        (on("row_pruning", "g: {related_modules: [[mlp.down]]}"), "layers.0.attention.qkv has no layer that shrinks"),
        (
            on("row_pruning", "g: {modules: [mlp.up], related_modules: [[attention.qkv]]}"),
            r"does not name the layers that shrink \(related_modules: \[\[mlp.down\]\]",
        ),
        (
            on("row_pruning", "g: {modules: [mlp.up], related_modules: [[mlp.down], [mlp.down]]}"),
            "has 2 lists for the 1 patterns of modules",
        ),
        (
            on("row_pruning", "g: {modules: [layers.0.mlp.up], related_modules: [[layers.0.mlp.down]]}"),
            "layers.1.mlp.up does not shrink, and a model has one size",
        ),
        (
            (*on("head_pruning", HEADS, "num_heads: 4"), "num-kv-heads=2"),
            "heads cannot be left out one by one with num_kv_heads 2",
        ),
        ((*on("head_pruning", HEADS, "num_heads: 4"), "pos-emb=alibi"), "each head has its own place in pos-emb alibi"),
        (on("sparse_pruning", "", "method: snip_momentum"), "schedule_offset_end: 0 leaves no step"),
        (snip("block_pattern: 3x5"), "the 96 x 32 weight of layers.0.attention.qkv cannot be cut into 3x5"),
        (snip("block_pattern: '4:2'"), "must leave something"),
        (snip("block_pattern: 4"), "block_pattern"),
        (snip("block_pattern: '2:4', dense_ratio: 0.4"), "dense_ratio: 0.4 is less than block_pattern 2:4 leaves, 0.5"),
        (on("sparse_pruning", "g: {}", "dense_ratio: 0.3"), "dense_ratio: is for method snip_momentum"),
        (
            (snip("")[0], f"{AT}.sparse_pruning.different_groups={{g: {{}}}}"),
            "snip_momentum compares the blocks of all layers, and has no groups",
        ),
        (on("sparse_pruning", "g: {params: {dense_ratio: 0}}"), "dense_ratio"),
        (on("head_pruning", "g: {modules: [attention.output]}"), "num_heads: is required"),
        (
            on("head_pruning", "g: {modules: [attention.output]}", "num_heads: 2"),
            "num_heads: 2 is not num-attention-heads",
        ),
        (on("head_pruning", "g: {}", "num_heads: 4"), "layers.0.attention.qkv does not join the heads"),
        (on("channel_pruning", "g: {}"), "channel_pruning.*: is for convolutions, and a decoder has none"),
        ((*weights("g: {}"), "compile=true"), "a model change is not compiled"),
    ],
)
def test_what_cannot_be_is_refused(resolve: Callable[..., Any], sets: tuple[str, ...], said: str) -> None:
    with pytest.raises(NeoxError, match=said):
        resolve(*sets)


def test_what_an_export_will_not_have_is_noted_before_the_start(resolve: Callable[..., Any]) -> None:
    def noted(*sets: str) -> list[str]:
        return [each.message for each in resolve(*sets).notes if "export" in each.message]

    assert noted(*on("activation_quantization", "g: {}")) == [
        "makes a model that cannot be exported: published models do not round inputs"
    ]
    (heads,) = noted(*on("head_pruning", HEADS, "num_heads: 4"))
    assert heads.startswith("leaves fewer heads of the same width in an export")
    assert not noted(*on("head_pruning", "g: {modules: [attention.output]}", "num_heads: 4"))


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ((), ""),
        (on("row_pruning", "g: {modules: [mlp.up], related_modules: [[mlp.down]]}"), ""),
        (on("head_pruning", "g: {modules: [attention.output]}", "num_heads: 4"), ""),
        (on("head_pruning", HEADS, "num_heads: 4"), "head-dim is something that this family"),
        (on("activation_quantization", "g: {}"), "cannot be folded into the weights of layers.0.attention.qkv"),
    ],
)
def test_the_families_of_a_check_are_those_of_the_export(
    resolve: Callable[..., Any], sets: tuple[str, ...], said: str
) -> None:
    """GPT-NeoX's has no head width of its own, so none for fewer heads of the same width."""
    resolved = resolve(*sets, "pos-emb=rotary", "norm=layernorm")
    found = exports(resolved.plan.model, resolved.config, resolved.catalog.registry)
    assert said in found.get("gpt_neox", found.get("an export", ""))
    assert bool(found.get("gpt_neox", "nothing")) == bool(said)

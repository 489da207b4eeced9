"""Compressed models that were trained: what is counted in their weights, and what is refused before a start."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from neox_gpt.api import FoldedReader, LinearChange, build_model
from neox_plain.api import build_engine
from torch import Tensor

from neox_core.checkpoint.checkpointer import Checkpointer
from neox_core.checkpoint.read import read_weights
from neox_core.checkpoint.state import TrainState
from neox_core.errors import ConfigError, NeoxError
from neox_core.hooks.loader import load_plugins
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.resolve import prepare_run
from neox_core.run.optimizer import build_optimizer

CONFIG = """
num-layers: 2
hidden-size: 32
num-attention-heads: 4
activation: gelu
norm: rmsnorm
pos-emb: rotary
no-weight-tying: true
max-position-embeddings: 16
seq-length: 16
data-path: none
data-impl: mmap
padded-vocab-size: 64
train-iters: 4
train_micro_batch_size_per_gpu: 4
hidden-dropout: 0
attention-dropout: 0
engine: plain
device: cpu
optimizer: {type: Adam, params: {lr: 1e-2}}
"""
CONTEXT = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1)
TOKENS = torch.arange(64).view(4, 16)
AT = "compression_training"


def on(technique: str, groups: str, shared: str = "") -> tuple[str, ...]:
    return (
        f"{AT}.{technique}.shared_parameters={{enabled: true, {shared}}}",
        f"{AT}.{technique}.different_groups={{{groups}}}",
    )


def weights(groups: str, shared: str = "") -> tuple[str, ...]:
    return on("weight_quantization", groups, f"quantize_weight_in_forward: true, {shared}")


@pytest.fixture
def resolve(tmp_path: Path) -> Callable[..., Any]:
    def _resolve(*sets: str) -> Any:
        (tmp_path / "c.yml").write_text(CONFIG)
        return prepare_run(
            [tmp_path / "c.yml"],
            sets if "save=" in " ".join(sets) else (*sets, f"save={tmp_path}/run"),
            catalog=load_plugins(),
            start=False,
        )

    return _resolve


def trained(plan: Any, steps: int = 4, context: BuildContext = CONTEXT) -> Path:
    """The checkpoint after so many steps."""
    model = build_model(plan.model, 64, context)
    engine = build_engine(plan, model, build_optimizer(plan.optim, model), context)
    checkpointer = Checkpointer(plan, engine, context)
    state: TrainState = checkpointer.load().state
    while state.step < steps:
        tokens = torch.randint(64, (4, 17), generator=torch.Generator().manual_seed(state.step))
        engine.train_step(iter([tokens]), 0.05)
        state.advance(plan)
    checkpointer.save(state)
    engine.close()
    return Path(plan.checkpoint.save) / f"step-{steps:08d}"


def folded(plan: Any, checkpoint: Path) -> dict[str, Tensor]:
    reader = FoldedReader(checkpoint, plan.model)
    assert reader.plan.changes is None
    return {name: reader.tensor("weight", name) for name in reader.shapes("weight")}


def test_distinct_values_of_trained_weights(resolve: Callable[..., Any]) -> None:
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


def test_folded_computes_the_same(resolve: Callable[..., Any]) -> None:
    plan = resolve(*weights("g: {params: {start_bits: 5, target_bits: 4}}", "quantization_type: asymmetric")).plan
    checkpoint = trained(plan)
    compressed = build_model(plan.model, 64, CONTEXT, read_weights(checkpoint)).eval()
    reader = FoldedReader(checkpoint, plan.model)
    plain = build_model(reader.plan, 64, CONTEXT, folded(plan, checkpoint)).eval()
    torch.testing.assert_close(compressed.logits(TOKENS), plain.logits(TOKENS), rtol=0, atol=2e-6)
    whole = {name: each for name, each in read_weights(checkpoint).items() if "changes" not in name}
    assert (
        build_model(reader.plan, 64, CONTEXT, whole).eval().logits(TOKENS) - plain.logits(TOKENS)
    ).abs().max() > 0.01


def test_rounded_inputs_cannot_be_folded(resolve: Callable[..., Any]) -> None:
    plan = resolve(*on("activation_quantization", "g: {}")).plan
    with pytest.raises(
        ConfigError, match=r"the model change compression cannot be folded into the weights of layers.0"
    ):
        FoldedReader(trained(plan), plan.model)


def test_rounds_once_a_step_or_in_every_pass(resolve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """`quantize_weight_in_forward`, by counting how often one layer's weight is rounded in two micro-batches."""
    calls: list[int] = []
    from neox_compression import weights as module_of_weights

    real = module_of_weights.round_weight
    monkeypatch.setattr(
        module_of_weights, "round_weight", lambda *args, **named: calls.append(1) or real(*args, **named)
    )
    for in_forward, wanted in (("true", 4), ("false", 2)):
        sets = on("weight_quantization", "g: {modules: [layers.0.mlp.up]}", f"quantize_weight_in_forward: {in_forward}")
        plan = resolve(*sets, "bf16.enabled=true", "engine=deepspeed").plan
        model = build_model(plan.model, 64, CONTEXT).train()
        calls.clear()
        for step in range(2):
            for module in model.modules():
                if isinstance(module, LinearChange):
                    module.at_step(step)
            for _ in range(2):
                model.loss(TOKENS, TOKENS).backward()
        assert len(calls) == wanted


def test_changes_of_bits_are_told(resolve: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    group = "g: {params: {target_bits: 6, quantization_period: 2}, modules: [layers.1.mlp.down]}"
    trained(resolve(*weights(group, "quantize_verbose: true, schedule_offset: 1")).plan)
    assert capsys.readouterr().err.splitlines() == [
        f"layers.1.mlp.down: weights have {bits} bits from step {step} on" for bits, step in ((8, 1), (7, 3))
    ]


@pytest.mark.parametrize("method", ["l1", "topk"])
def test_density_of_trained_weights(resolve: Callable[..., Any], method: str) -> None:
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
    compressed = build_model(plan.model, 64, CONTEXT, stored).eval()
    plain = build_model(FoldedReader(checkpoint, plan.model).plan, 64, CONTEXT, pruned).eval()
    with torch.no_grad():
        torch.testing.assert_close(compressed.logits(TOKENS), plain.logits(TOKENS), rtol=0, atol=2e-6)


def test_masks_of_l1_are_of_the_weights_at_the_offset(resolve: Callable[..., Any], tmp_path: Path) -> None:
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
        (weights("g: {}", "quantizer_kernel: true"), "quantizer_kernel: is known, but not available"),
        (on("row_pruning", "g: {related_modules: [[mlp.down]]}"), "related_modules: is known, but not available"),
        (on("sparse_pruning", "g: {}", "method: snip_momentum"), "method: snip_momentum is not available"),
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

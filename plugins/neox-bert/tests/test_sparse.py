"""Sparse layouts of an encoder: each against dense attention under the same mask, in float64, and who may have them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from neox_bert.architecture import BertArchitecture
from neox_bert.planner import BertPlan
from neox_gpt.api import LayoutShape, Scope
from torch import Tensor
from torch.nn import functional as F

from neox_core.errors import ConfigError
from neox_core.hooks.component import load_path
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.resolve import prepare_run

VOCAB, SEQ, BLOCK, PAD = 64, 48, 8, 63
CONFIG = f"""
architecture: bert
objective: masked-lm
sentence-pairs: none
num-layers: 2
hidden-size: 32
num-attention-heads: 4
seq-length: {SEQ}
max-position-embeddings: {SEQ}
norm: layernorm
pos-emb: learned
hidden-dropout: 0.0
attention-dropout: 0.0
padded-vocab-size: {VOCAB}
cls-token-id: 60
sep-token-id: 61
mask-token-id: 62
pad-token-id: {PAD}
init-method-std: 0.3
device: cpu
engine: plain
train_micro_batch_size_per_gpu: 2
optimizer: {{type: Adam, params: {{lr: 0.01}}}}
lr-decay-style: constant
train-iters: 2
eval-iters: 0
data-path: text
sparsity: all
"""
BOTH = ", attention: bidirectional"
LAYOUTS = {
    "dense": "",
    "fixed": f"{BOTH}, num_local_blocks: 2, horizontal_global_attention: true",
    "variable": f"{BOTH}, local_window_blocks: [1, 2], num_random_blocks: 1, different_layout_per_head: true",
    "bigbird": ", num_random_blocks: 2, different_layout_per_head: true",
    "bslongformer": ", num_sliding_window_blocks: 1, global_block_indices: [2]",
    "local": "",
}


def planned(folder: Path, *sets: str) -> Any:  # a plan of an encoder's model
    file = folder / "config.yml"
    file.write_text(CONFIG)
    return prepare_run([file], sets, start=False, folder=folder).plan.model


def of(mode: str) -> str:
    return f"sparse_attention={{mode: {mode}, block: {BLOCK}{LAYOUTS[mode]}}}"


def built(plan: Any) -> Any:
    context = BuildContext(torch.device("cpu"), torch.float64, Groups(None, None, 0, 1), seed=5)
    return BertArchitecture(plan).build(VOCAB, context).eval()


def tokens(seq: int = SEQ) -> Tensor:
    found = torch.randint(60, (2, seq), generator=torch.Generator().manual_seed(3))
    found[0, seq - 5 :] = PAD
    return found


def seen_by(plan: BertPlan, layer: int) -> Tensor:
    """bool [heads, seq, seq], from the layout's own function."""
    (reference,) = plan.layouts
    shape = LayoutShape(SEQ // BLOCK, plan.num_attention_heads, layer, 5, causal=False)
    layout = load_path(reference.target)(shape, reference.load()[1])
    return layout.repeat_interleave(BLOCK, 1).repeat_interleave(BLOCK, 2)


@pytest.mark.parametrize("mode", LAYOUTS)
@pytest.mark.parametrize("seq", [SEQ, 29])
def test_a_layer_is_dense_attention_under_the_mask_of_its_layout(mode: str, seq: int, tmp_path: Path) -> None:
    plan = planned(tmp_path, of(mode))
    model, given = built(plan), tokens(seq)
    documents = model.documents.index(given)
    for layer, block in enumerate(model.layers):
        inner = block.attention
        x = torch.randn(2, seq, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(layer))
        made = inner(x, model.position, Scope(documents=documents, tables=model.tables), layer)
        parts = F.linear(x, inner.qkv.weight, inner.qkv.bias).view(2, seq, 4, 3, 8).permute(3, 0, 2, 1, 4)
        mask = seen_by(plan, layer)[:, :seq, :seq] & (documents[:, :, None] == documents[:, None, :])[:, None]
        scores = (parts[0] @ parts[1].mT / 8**0.5).masked_fill(~mask, -1e30)
        wanted = torch.where(mask, scores.softmax(-1), 0.0) @ parts[2]
        wanted = F.linear(wanted.transpose(1, 2).reshape(2, seq, 32), inner.output.weight, inner.output.bias)
        torch.testing.assert_close(made, wanted, rtol=0, atol=1e-10)


def test_a_layout_of_all_blocks_is_attention_without_one(tmp_path: Path) -> None:
    """Logits and gradients of the whole model, whose other layouts change them."""
    plain = built(planned(tmp_path, "sparsity=none"))
    wanted = plain.logits(tokens())
    wanted.square().sum().backward()
    for mode in ("dense", "local"):
        model = built(planned(tmp_path, of(mode)))
        found = model.logits(tokens())
        assert torch.allclose(found, wanted, rtol=0, atol=1e-9) == (mode == "dense")
        found.square().sum().backward()
        if mode == "dense":
            for (name, one), other in zip(model.named_parameters(), plain.parameters(), strict=True):
                torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-6, msg=name)


REFUSED = (
    ([], "sparse_attention.attention: is unidirectional, and the tokens of an encoder see those after them"),
    (["sparse_attention={mode: fixed, block: 8}"], "is unidirectional, and the tokens of an encoder"),
    (["architecture=gpt", "objective=causal-lm", of("fixed")], "a decoder cannot look ahead"),
    ([of("local"), "kernels={block_sparse_attention: flex}"], "no layer has causal softmax attention"),
    (["sliding_window_width=4"], "sliding_window_width: an encoder does not have sliding windows"),
    (["no_weight_tying=true", "use_bias_in_head=true"], "use_bias_in_head: the logits of an encoder always have"),
)


@pytest.mark.parametrize(("sets", "said"), REFUSED)
def test_a_layout_looks_where_its_model_does(sets: list[str], said: str, tmp_path: Path) -> None:
    of_encoder = ("num-tokentypes", "cls-token-id", "sep-token-id", "mask-token-id", "pad-token-id", "sentence-pairs")
    removed = [f"{each}=null" for each in of_encoder[1:]] if "architecture=gpt" in sets else []
    with pytest.raises(ConfigError, match=said):
        planned(tmp_path, *sets, *removed)

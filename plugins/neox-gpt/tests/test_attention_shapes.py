"""Heads of another width, norms of queries and keys, windows, and layers without positions."""

from typing import Any

import pytest
import torch
from attrs import evolve
from neox_author.testing import load_only
from neox_gpt.attention.attention import Attention
from neox_gpt.contracts import MixerShape
from neox_gpt.gpt import GPT
from neox_gpt.shape import flops_per_token
from neox_gpt.testing import check_mixer, mixers
from torch import Tensor, nn
from torch.nn import functional as F

from neox_core.parallel.sample_keys import sample_keys

SHAPES = {
    "norms by head in a window": {"head_dim": 6, "qk_norm": "head", "window": 3, "softcap": 1.5, "multiplier": 0.9},
    "norms of all heads": {"qk_norm": "all", "window": 1, "output_bias": False},
    "one norm of all heads": {"qk_norm": "shared", "num_kv_heads": 4, "head_dim": 2},
}


@pytest.mark.parametrize("name", SHAPES)
def test_attention_keeps_its_contract(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Two ranks are one, decoding is a whole sequence, documents, dropout, recomputation, for each shape."""
    shape = evolve(mixers.SHAPE, norm=nn.LayerNorm, **SHAPES[name])
    monkeypatch.setattr(mixers, "SHAPE", shape)
    monkeypatch.setattr(mixers, "FORMS", (shape,))
    monkeypatch.setattr(mixers, "_check_uses", lambda tell: None)
    check_mixer(load_only("neox-gpt"), "global")


def written_out(module: Any, x: Tensor, shape: MixerShape) -> Tensor:
    """The same in a few lines, without positions: GPT-NeoX at ea7aefd in megatron/model/transformer.py and utils.py."""
    seq = x.shape[1]
    query, key, value = F.linear(x, module.qkv.weight, module.qkv.bias).unflatten(2, (shape.num_heads, 3, -1)).unbind(3)
    norm = module.qk_norm.both
    heads = (shape.num_heads, shape.head_dim)  # which GPT-NeoX normalises together
    query, key = (F.layer_norm(each, heads, norm.weight.view(heads), norm.bias.view(heads)) for each in (query, key))
    mask = torch.ones(seq, seq).tril().triu(-(shape.window or seq)) < 0.5
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / shape.head_dim**0.5
    probs = scores.masked_fill(mask, -10000.0).softmax(-1)
    return module.output(torch.einsum("bhqk,bkhd->bqhd", probs, value).flatten(2))


def test_norms_and_windows_are_those_of_gpt_neox() -> None:
    shape = MixerShape(16, 4, 4, 40, qk_norm="shared", norm=nn.LayerNorm, window=5, positions=False)
    module = mixers.draw(Attention(shape).double())
    x = mixers.random(2, 40, 16)
    torch.testing.assert_close(module(x, None), written_out(module, x, shape), rtol=0, atol=1e-9)


def test_a_window_reaches_so_many_tokens_back(make: Any, tokens: Tensor) -> None:
    """Three layers of 7 see 21 tokens back, and no further; without positions a layer takes none."""
    model: GPT = make("norms of all heads in windows").eval()
    changed = tokens.clone()
    changed[:, 0] = (changed[:, 0] + 1) % 96
    with torch.no_grad():
        apart = (model.logits(changed) - model.logits(tokens)).abs().amax((0, 2))
    assert (apart[:22] > 0).all()
    assert (apart[22:] == 0).all()


def test_layers_without_positions_do_not_turn(make: Any, tokens: Tensor) -> None:
    model: GPT = make("windows, no positions, norms by head").eval()
    positions = [layer.attention.positions for layer in model.layers]
    assert positions == [True, False, True]
    assert [layer.attention.window for layer in model.layers] == [5, None, 17]
    before = model.logits(tokens)
    model.layers[1].attention.positions = True
    assert (model.logits(tokens) - before).abs().max() > 1e-4


def test_operations_count_widths_and_windows(make: Any) -> None:
    """By hand: 6 for each weight, 12 for each element of the queries and each token seen."""
    model: GPT = make("windows, no positions, norms by head")
    linears = [each.weight for each in model.modules() if hasattr(each, "residual_output")]
    weights = sum(each.numel() for each in linears)
    wanted = 6 * weights + 12 * 4 * 24 * (6 + 24 + 18)
    assert flops_per_token(model.shape, 24) == model.flops_per_token == wanted


def test_recomputation_and_dropout_in_windows(make: Any, tokens: Tensor) -> None:
    """The model's gradients, with activations kept and with them computed again."""
    from neox_core.plan.runfile import RecomputePlan

    keys, found = sample_keys(1, 0, 3, "cpu"), []
    for recompute in (None, RecomputePlan(1, False)):
        dropout = {"attention_dropout": 0.2, "hidden_dropout": 0.1}
        model = make("windows, no positions, norms by head", recompute=recompute, **dropout)
        model.train().loss(tokens, tokens.roll(-1, 1), keys).backward()
        found.append({name: each.grad for name, each in model.named_parameters()})
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])
    assert found[0]["layers.0.attention.qk_norm.query.weight"].abs().sum() > 0

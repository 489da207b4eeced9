"""The loss that GPT-NeoX computes, in float64, from the parts that `gpt_neox_files.draw` makes.

Follows `megatron/model` of ea7aefd: transformer.py, norms.py, positional_embeddings.py, activations.py, and
ParallelRelativePositionBias of `megatron/mpu/layers.py`. There, the base of rotary positions is 10,000, a table of
relative positions is shared by all layers and multiplied by the root of the head width, and alibi is not.
"""

import math
from typing import Any

import torch
from gpt_neox_files import HEADS, HIDDEN, LAYERS, Run
from torch import Tensor, nn

WIDTH = HIDDEN // HEADS
Parts = dict[str, Tensor]
ACTIVATIONS: dict[str, Any] = {
    "gelu": nn.functional.gelu,
    "relu": nn.functional.relu,
    "softsign": nn.functional.softsign,
    "swish": nn.functional.silu,
    "silu": nn.functional.silu,
    "mish": lambda x: x * torch.tanh(nn.functional.softplus(x)),
    "geglu": nn.functional.gelu,
    "reglu": nn.functional.relu,
    "bilinear": lambda x: x,
    "swiglu": nn.functional.silu,
    "glu": torch.sigmoid,
}


def loss_of(run: Run, parts: Parts, tokens: Tensor) -> float:
    """tokens: int64 [batch, seq + 1]."""
    parts = {name: each.double() for name, each in parts.items()}
    x = parts["embedding"][tokens[:, :-1]]
    length = x.shape[1]
    if run.positions == "learned":
        x = x + parts["positions"][:length]
    if run.positions == "sinusoidal":
        angles = torch.arange(length)[:, None] * _frequencies(HIDDEN)
        x = x + torch.cat((angles.sin(), angles.cos()), -1)
    for layer in range(LAYERS):
        x = _block(run, parts, layer, x)
    logits = _norm(run, parts, "norm", x) @ parts["embedding" if run.tied else "head"].T
    return float(nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()))


def _block(run: Run, parts: Parts, layer: int, x: Tensor) -> Tensor:
    first = _norm(run, parts, f"{layer}.input_layernorm", x)
    attended = _attention(run, parts, layer, first)
    if run.parallel:
        tied = run.config.get("gpt_j_tied", False)
        second = first if tied else _norm(run, parts, f"{layer}.post_attention_layernorm", x)
        return x + attended + _mlp(run, parts, layer, second)
    x = x + attended
    return x + _mlp(run, parts, layer, _norm(run, parts, f"{layer}.post_attention_layernorm", x))


def _norm(run: Run, parts: Parts, name: str, x: Tensor) -> Tensor:
    if run.norm == "layernorm":
        eps = run.config.get("layernorm_epsilon", 1e-5)
        return nn.functional.layer_norm(x, (HIDDEN,), parts[f"{name}.weight"], parts[f"{name}.bias"], eps)
    if run.norm == "rmsnorm":
        eps = run.config.get("rms_norm_epsilon", 1e-8)
        return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * parts[f"{name}.scale"]
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-8) * parts[f"{name}.g"]


def _attention(run: Run, parts: Parts, layer: int, x: Tensor) -> Tensor:
    def heads(name: str) -> Tensor:
        found = torch.einsum("bsh,nwh->bnsw", x, parts[f"{layer}.{name}.weight"])
        return found + parts[f"{layer}.{name}.bias"][None, :, None] if run.biases else found

    q, k, v = heads("q"), heads("k"), heads("v")
    if run.qk_norm:
        gains = (parts[f"{layer}.qk.{leaf}"] for leaf in ("weight", "bias"))
        weight, bias = gains
        q, k = (
            nn.functional.layer_norm(each.transpose(1, 2), (HEADS, WIDTH), weight, bias).transpose(1, 2)
            for each in (q, k)
        )
    if run.positions == "rotary":
        q, k = (_rotated(each, int(WIDTH * run.config.get("rotary_pct", 1.0))) for each in (q, k))
    k, v = (each.repeat_interleave(HEADS // run.kv_heads, 1) for each in (k, v))
    scores = q @ k.transpose(2, 3) / math.sqrt(WIDTH) + _bias(run, parts, x.shape[1])
    scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
    return mixed @ parts[f"{layer}.dense.weight"].T + _row_bias(run, parts, f"{layer}.dense")


def _row_bias(run: Run, parts: Parts, name: str) -> Tensor:
    """Each tensor rank adds its own before the sum over ranks, in the parallel form; one is added after it else."""
    if not run.biases:
        return torch.zeros(HIDDEN, dtype=torch.float64)
    copies = [parts[f"{name}.bias@{rank}"] for rank in range(run.tensor)]
    return torch.stack(copies).sum(0) if run.parallel else copies[0]


def _mlp(run: Run, parts: Parts, layer: int, x: Tensor) -> Tensor:
    def through(name: str) -> Tensor:
        found = x @ parts[f"{layer}.{name}.weight"].T
        return found + parts[f"{layer}.{name}.bias"] if run.biases else found

    function = ACTIVATIONS[run.config.get("activation", "swiglu" if run.gated else "gelu")]
    inner = function(through("gate")) * through("up") if run.gated else function(through("up"))
    return inner @ parts[f"{layer}.down.weight"].T + _row_bias(run, parts, f"{layer}.down")


def _frequencies(width: int) -> Tensor:
    return 10_000 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)


def _rotated(x: Tensor, turned: int) -> Tensor:
    """The first `turned` numbers of a head, whose halves are the pairs."""
    angles = torch.arange(x.shape[2])[:, None] * _frequencies(turned)
    first, second, rest = x.split((turned // 2, turned // 2, x.shape[3] - turned), -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), -1)


def _bias(run: Run, parts: Parts, length: int) -> Tensor:
    """What is added to the scores of a head for the distance of two tokens."""
    apart = (torch.arange(length)[:, None] - torch.arange(length)).clamp(min=0)
    if run.positions == "alibi":  # HEADS is a power of two
        slopes = 2 ** -(torch.arange(1, HEADS + 1, dtype=torch.float64) * 8 / HEADS)
        return -slopes[:, None, None] * apart
    if run.positions == "rpe":
        exact, buckets, farthest = 16, 32, 128
        large = exact + (torch.log(apart.double() / exact) / math.log(farthest / exact) * (buckets - exact)).clamp(
            min=0
        )
        bucket = torch.where(apart < exact, apart, large.long().clamp(max=buckets - 1))
        return parts["rpe"][bucket].permute(2, 0, 1) * math.sqrt(WIDTH)
    return torch.zeros(1, dtype=torch.float64)

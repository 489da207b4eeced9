"""What becomes of each parameter of GPT-NeoX, and how the parts of its tensor ranks are joined."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from attrs import frozen
from torch import Tensor

if TYPE_CHECKING:
    from neox_gpt.api import GPTPlan

FIRST_BLOCK = 2
"""The number of the first block among the layers: 0 is the embedding, 1 and the layer after the blocks have no file."""
EMBEDDING, POSITIONS = "0.word_embeddings.weight", "0.position_embeddings.weight"
_BUFFERS = re.compile(
    r"(rotary_emb\.inv_freq|position_embeddings\.inv_freq|alibi_embed\.slopes|masked_bias|sparse_attn\.master_layout)$"
)
_LEAVES = {"weight": ("weight", "scale", "g"), "bias": ("bias",)}

Parts = Sequence[Tensor]
"""One tensor of each tensor rank."""
Join = Callable[[Sequence[Parts]], Tensor]


def is_buffer(name: str) -> bool:
    """Whether GPT-NeoX stores a tensor that is not trained, and that neox computes."""
    return _BUFFERS.search(name) is not None or name.endswith(".attention.bias")


@frozen
class Rule:
    """One parameter of neox. theirs: names of GPT-NeoX's parameters that it is made of. dim: in which a tensor rank's
    part is a slice; None: every rank has all of it. join: the parts of each of `theirs`.

    summed: a bias of which every rank adds its own copy, so that their sum is what acts.
    scale: what GPT-NeoX multiplies the parameter by where it is used.
    """

    ours: str
    theirs: tuple[str, ...]
    dim: int | None
    join: Join
    summed: bool = False
    scale: float = 1.0


def rules(model: GPTPlan, names: Sequence[str], tensor_ranks: int, *, head_dim: int = 0) -> Iterator[Rule]:
    """A rule for every parameter of the model. names: those that GPT-NeoX has. head_dim: in which its head is cut."""
    there = set(names)
    yield Rule("embedding.weight", (EMBEDDING,), 0, _along(0))
    if model.position.name == "learned":
        yield Rule("position.weight", (POSITIONS,), None, _first)
    if model.position.name == "rpe":
        name = next((each for each in names if each.endswith(".attention.rpe.weight")), "attention.rpe.weight")
        root = (model.hidden_size // model.num_attention_heads) ** 0.5
        yield Rule("position.weight", (name,), 1, _along(1), scale=root)
    for layer in range(model.num_layers):
        yield from _block(model, f"layers.{layer}", f"{FIRST_BLOCK + layer}", there, tensor_ranks)
    last = FIRST_BLOCK + model.num_layers + 1
    yield from _norm("final_norm", f"{last}.norm", there)
    if not model.tie_embeddings:
        yield Rule("head.weight", (f"{last + 1}.final_linear.weight",), head_dim, _along(head_dim))


def _block(model: GPTPlan, ours: str, theirs: str, there: set[str], tensor_ranks: int) -> Iterator[Rule]:
    yield from _norm(f"{ours}.attention_norm", f"{theirs}.input_layernorm", there)
    if not model.shared_norm:
        yield from _norm(f"{ours}.mlp_norm", f"{theirs}.post_attention_layernorm", there)
    heads, kv_heads = model.num_attention_heads, model.num_kv_heads or model.num_attention_heads
    grouped = heads != kv_heads
    by_key = _by_key(heads // tensor_ranks, kv_heads // tensor_ranks) if grouped else _along(0)
    summed = model.parallel_residual
    for leaf in ("weight", "bias") if model.attention_bias else ("weight",):
        yield Rule(f"{ours}.attention.qkv.{leaf}", (f"{theirs}.attention.query_key_value.{leaf}",), 0, by_key)
        yield _row(f"{ours}.attention.output", f"{theirs}.attention.dense", leaf, summed=summed)
    if model.qk_norm == "shared":
        for leaf in ("weight", "bias"):
            yield Rule(
                f"{ours}.attention.qk_norm.both.{leaf}", (f"{theirs}.attention.qk_layernorm.{leaf}",), None, _flat
            )
    if f"{theirs}.mlp.w1.weight" in there:
        both = (f"{theirs}.mlp.w3.weight", f"{theirs}.mlp.w1.weight")
        yield Rule(f"{ours}.mlp.up.weight", both, 0, _one_after_the_other)
        yield _row(f"{ours}.mlp.down", f"{theirs}.mlp.w2", "weight", summed=summed)
        return
    older = f"{theirs}.mlp.dense_h_to_4h.weight" in there
    up, down = ("dense_h_to_4h", "dense_4h_to_h") if older else ("linear1", "linear2")
    sections = _sections(2) if is_gated(model.activation.name) else _along(0)
    for leaf in ("weight", "bias") if model.mlp_bias else ("weight",):
        yield Rule(f"{ours}.mlp.up.{leaf}", (f"{theirs}.mlp.{up}.{leaf}",), 0, sections)
        yield _row(f"{ours}.mlp.down", f"{theirs}.mlp.{down}", leaf, summed=summed)


def is_gated(activation: str) -> bool:
    """Whether an activation of GPT-NeoX has a gate."""
    return activation in ("geglu", "swiglu", "reglu", "glu", "bilinear")


def _norm(ours: str, theirs: str, there: set[str]) -> Iterator[Rule]:
    for leaf, spelled in _LEAVES.items():
        found = next((each for each in spelled if f"{theirs}.{each}" in there), None)
        if found is not None or leaf == "weight":
            yield Rule(f"{ours}.{leaf}", (f"{theirs}.{found or leaf}",), None, _first)


def _row(ours: str, theirs: str, leaf: str, *, summed: bool) -> Rule:
    if leaf == "weight":
        return Rule(f"{ours}.weight", (f"{theirs}.weight",), 1, _along(1))
    return Rule(f"{ours}.bias", (f"{theirs}.bias",), None, _first, summed)


def _first(theirs: Sequence[Parts]) -> Tensor:
    return theirs[0][0]


def _flat(theirs: Sequence[Parts]) -> Tensor:
    return theirs[0][0].flatten()


def _along(dim: int) -> Join:
    return lambda theirs: torch.cat(list(theirs[0]), dim) if len(theirs[0]) > 1 else theirs[0][0]


def _sections(count: int) -> Join:
    """Each rank has a part of every section, one after the other: value and gate of a gated MLP."""

    def join(theirs: Sequence[Parts]) -> Tensor:
        by_rank = [part.chunk(count) for part in theirs[0]]
        return torch.cat([part[section] for section in range(count) for part in by_rank])

    return join


def _one_after_the_other(theirs: Sequence[Parts]) -> Tensor:
    return torch.cat([part for parts in theirs for part in parts])


def _by_key(heads: int, kv_heads: int) -> Join:
    """Rows of each rank: its queries, its keys, its values -> for each key its queries, the key and its value."""
    group = heads // kv_heads

    def join(theirs: Sequence[Parts]) -> Tensor:
        ranks = []
        for part in theirs[0]:
            width = part.shape[0] // (heads + 2 * kv_heads)
            rest = part.shape[1:]
            queries, keys, values = part.split((heads * width, kv_heads * width, kv_heads * width))
            by_key = [each.reshape(kv_heads, -1, width, *rest) for each in (queries, keys, values)]
            ranks.append(torch.cat(by_key, 1).reshape(kv_heads * (group + 2) * width, *rest))
        return torch.cat(ranks)

    return join


def join_state(rule: Rule, theirs: Sequence[Parts], part: Sequence[int], state: str) -> Tensor:
    """The state of a parameter from those of its parts; one that has a number for each row or column is joined over
    the ranks that split this side, and is the largest of all ranks over the other. part: shape of the parameter's part.
    """
    first = theirs[0][0]
    if rule.dim is not None and first.ndim == len(part) and first.shape[rule.dim] == 1 < part[rule.dim]:
        return torch.stack([part for parts in theirs for part in parts]).amax(0)
    joined = rule.join(theirs)
    if rule.scale == 1:
        return joined
    return joined / (rule.scale**2 if state.endswith("_sq") else rule.scale)


def merged(rule: Rule, theirs: Sequence[Parts]) -> Tensor:
    """A weight, or its fp32 copy, from the parts of all ranks."""
    if rule.summed:
        return torch.stack(list(theirs[0])).sum(0)
    return rule.join(theirs) if rule.scale == 1 else rule.join(theirs) * rule.scale


def unused(names: Mapping[str, object], used: set[str]) -> list[str]:
    """Their parameters that no rule takes, but for those that GPT-NeoX itself has and does not use."""
    return sorted(name for name in names if name not in used and not is_buffer(name))

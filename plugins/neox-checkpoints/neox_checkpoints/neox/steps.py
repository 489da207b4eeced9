"""Keys with which neox makes the updates that GPT-NeoX would have made, where they differ.

Each was found on checkpoints that GPT-NeoX wrote, as the one change that repeats its next ten losses to 1e-6.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from neox_checkpoints.neox.weights import EMBEDDING, FIRST_BLOCK

if TYPE_CHECKING:
    from neox_checkpoints.neox.config import Written
    from neox_checkpoints.neox.ranks import Ranks

ROWS = {
    "attention.dense.bias": "attention.output.bias",
    "mlp.linear2.bias": "mlp.down.bias",
    "mlp.dense_4h_to_h.bias": "mlp.down.bias",
}
"""Biases of which every tensor rank has a copy, and their names here."""
NORMS = {
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "mlp_norm",
    "attention.qk_layernorm": "attention.qk_norm.both",
}


def keep_its_steps(ranks: Ranks, written: Written) -> None:
    """Write the keys, each with a line of what GPT-NeoX does."""
    names = {name for held in ranks.weights[:1] for name in held}
    rows = {ours for name in names for theirs, ours in ROWS.items() if name.endswith(theirs)}
    if written.keys.get("gpt-j-residual") and ranks.tensor_ranks > 1 and rows:
        copies = float(ranks.tensor_ranks)
        written.put(
            "lr_scales",
            _listed({f"layers.*.{row}": copies for row in rows}),
            f"each of {ranks.tensor_ranks} tensor ranks trained a copy of its own; what acts is their sum",
        )
    if counts := _counts(ranks) if written.keys["gradient-clipping"] else {}:
        written.put(
            "gradient_norm_counts",
            _listed(counts),
            "a pipeline in fp32 without ZeRO counts norms and biases of its first stage only, and a tied weight twice",
        )


def _listed(factors: Mapping[str, float]) -> list[list[Any]]:
    """The factors as the key takes them: pairs of name and factor."""
    return [[name, factor] for name, factor in sorted(factors.items())]


def _counts(ranks: Ranks) -> dict[str, float]:
    """How often parameters count in the norm of a pipeline whose optimizer has a tensor for each of them."""
    stages = [ranks.groups[first] for first in range(0, len(ranks.groups), ranks.tensor_ranks)]
    if len(stages) < 2 or not stages[0][0].whole:
        return {}
    counts: dict[str, float] = {}
    held = [[name for group in groups for name, _ in group.names] for groups in stages]
    for name in (each for stage in held[1:] for each in stage):
        if name == EMBEDDING:
            counts["embedding.weight"] = counts.get("embedding.weight", 1.0) + 1.0
        elif (ours := _counted_by_the_first(name)) is not None:
            counts[ours] = 0.0
    return counts


def _counted_by_the_first(name: str) -> str | None:
    """The pattern here of a parameter that only the first rank of a pipeline counts: one that is not cut."""
    layer, _, leaf = name.partition(".")
    if leaf.startswith("norm."):
        return "final_norm.*"
    prefix = f"layers.{int(layer) - FIRST_BLOCK}."
    for theirs, ours in ROWS.items():
        if leaf == theirs:
            return prefix + ours
    return next((f"{prefix}{ours}.*" for theirs, ours in NORMS.items() if leaf.startswith(f"{theirs}.")), None)

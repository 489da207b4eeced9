"""What model changes add to the floating-point operations of a step, and what frozen weights save."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neox_gpt.config.plan import ADDED

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from neox_gpt.block import Block
    from neox_gpt.changes import Changes
    from neox_gpt.shape import ModelShape


def flops_of_changes(shape: ModelShape, changes: Changes, build_block: Callable[[int], Block]) -> int:
    """Floating-point operations of forward and backward for one token, less those of the model without `changes`.

    A frozen weight has no gradient: 2 of its 6 operations are left out. The gradients of inputs are computed down to
    the embedding, as `Embedding` asks for. build_block: makes a whole block with the changes in it.
    """
    if not changes.some:
        return 0
    of_block: dict[int, int] = {}
    blocks = {index: build_block(index) for index in dict.fromkeys(shape.layer_order)}
    inside = [f"layers.{index}.{name}" for index, block in blocks.items() for name, _ in block.named_parameters()]
    changes.require_effect(blocks.values(), ["embedding.weight", "final_norm.weight", "head.weight", *inside])
    for index, block in blocks.items():
        at = f"layers.{index}"
        mixed, fed = (_of(part, f"{at}.{name}", changes) for name, part in block.named_children() if name in PARTS)
        whole = 6 * sum(each.numel() for each in _weights(block.mlp).values())
        met = min(1.0, block.mlp.flops_per_token / whole) if whole else 0.0  # an expert's weights meet few tokens
        of_block[index] = mixed + round(met * fed) + _added(block)
    output = "embedding.weight" if shape.tie_embeddings else "head.weight"
    frozen = 0 if changes.trains(output) else 2 * shape.hidden_size * shape.vocab_size
    return sum(of_block[index] for index in shape.layer_order) - frozen


PARTS = ("attention", "mlp")


def _of(part: nn.Module, at: str, changes: Changes) -> int:
    frozen: int = sum(each.numel() for name, each in _weights(part).items() if not changes.trains(f"{at}.{name}"))
    return -2 * frozen


def _weights(part: nn.Module) -> dict[str, nn.Parameter]:
    """What a mixer or a feed-forward multiplies by, without what changes have added."""
    return {name: each for name, each in part.named_parameters() if each.dim() > 1 and ADDED not in f".{name}"}


def _added(block: Block) -> int:
    multiplied: int = sum(change.get_parameter(name).numel() for change in block.changes for name in change.multiplied)
    return 6 * multiplied

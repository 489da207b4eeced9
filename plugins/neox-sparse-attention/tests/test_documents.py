"""Layouts against what DeepSpeed's documents say of them, a sentence a function, asked block by block.

The sentences are those of docs/_tutorials/sparse-attention.md and of the sparse_attention section of config-json.md.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from neox_gpt.api import LayoutShape
from neox_sparse_attention.plugin import neox_sparse_layouts

from neox_core.hooks.component import load_path

LAYOUTS = {each.name: each for each in neox_sparse_layouts()}
Sees = Callable[[int, int, int, int], bool]
"""(head, query block, key block, blocks)"""


def fixed(
    num_local_blocks: int = 4, num_global_blocks: int = 1, num_different_global_patterns: int = 1, **_: Any
) -> Sees:
    """A local window of num_local_blocks; from its last block to its first, num_global_blocks represent it."""

    def represent(head: int, blocks: int) -> set[int]:
        found = set()
        for start in range(0, blocks, num_local_blocks):
            first = start + num_local_blocks - (head % num_different_global_patterns + 1) * num_global_blocks
            if start + num_local_blocks > blocks:  # a short last window
                first = min(first, blocks - num_global_blocks)
            found |= set(range(first, first + num_global_blocks))
        return found

    return lambda h, q, k, n: q // num_local_blocks == k // num_local_blocks or k in represent(h, n)


def variable(
    local_window_blocks: tuple[int, ...] = (4,),
    global_block_indices: tuple[int, ...] = (0,),
    global_block_end_indices: tuple[int, ...] | None = None,
    **_: Any,
) -> Sees:
    """The first number is the size of the first window, the second of the second, the last of all that remain."""

    def window(block: int) -> int:
        sizes = [*local_window_blocks, *[local_window_blocks[-1]] * 100]
        return next(i for i in range(len(sizes)) if block < sum(sizes[: i + 1]))

    attended = ranges(global_block_indices, global_block_end_indices)
    return lambda h, q, k, n: window(q) == window(k) or k in attended


def bigbird(num_sliding_window_blocks: int = 3, num_global_blocks: int = 1, **_: Any) -> Sees:
    """num_global_blocks consecutive ones from index 0 are attended by all and attend to all."""
    reach = num_sliding_window_blocks // 2
    return lambda h, q, k, n: abs(q - k) <= reach or k < num_global_blocks or q < num_global_blocks


def bslongformer(
    num_sliding_window_blocks: int = 3,
    global_block_indices: tuple[int, ...] = (0,),
    global_block_end_indices: tuple[int, ...] | None = None,
    **_: Any,
) -> Sees:
    """The blocks at the indices are attended by all and attend to all; with ends, ranges without the end."""
    reach, both = num_sliding_window_blocks // 2, ranges(global_block_indices, global_block_end_indices)
    return lambda h, q, k, n: abs(q - k) <= reach or k in both or q in both


def local(num_sliding_window_blocks: int = 3, **_: Any) -> Sees:
    return lambda h, q, k, n: abs(q - k) <= num_sliding_window_blocks // 2


def dense(**_: Any) -> Sees:
    return lambda h, q, k, n: True


def ranges(starts: tuple[int, ...], ends: tuple[int, ...] | None) -> set[int]:
    if ends is None:
        return set(starts)
    return {block for start, end in zip(starts, ends, strict=True) for block in range(start, end)}


TOLD = {each.__name__: each for each in (fixed, variable, bigbird, bslongformer, local, dense)}
PER_HEAD = {"different_layout_per_head": True}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("dense", {}),
    ("fixed", {}),
    ("fixed", {"num_local_blocks": 8, "num_global_blocks": 2}),
    ("fixed", {"num_local_blocks": 4, "num_different_global_patterns": 4, **PER_HEAD}),
    ("fixed", {"num_local_blocks": 6, "num_global_blocks": 2, "num_different_global_patterns": 3, **PER_HEAD}),
    ("fixed", {"num_local_blocks": 1}),
    ("variable", {"num_random_blocks": 0}),
    ("variable", {"local_window_blocks": (2, 4)}),
    ("variable", {"local_window_blocks": (1, 3, 5), "global_block_indices": (2, 7)}),
    ("variable", {"global_block_indices": (0, 5), "global_block_end_indices": (2, 9)}),
    ("bigbird", {"num_random_blocks": 0}),
    ("bigbird", {"num_random_blocks": 0, "num_sliding_window_blocks": 5, "num_global_blocks": 3}),
    ("bslongformer", {}),
    ("bslongformer", {"num_sliding_window_blocks": 1, "global_block_indices": (4, 9)}),
    ("bslongformer", {"global_block_indices": (1, 6), "global_block_end_indices": (3, 10)}),
    ("local", {}),
    ("local", {"num_sliding_window_blocks": 8}),
]


@pytest.mark.parametrize(("mode", "settings"), CASES, ids=str)
@pytest.mark.parametrize("blocks", [1, 2, 10, 12, 13, 23])
def test_every_block_is_as_told(mode: str, settings: dict[str, Any], blocks: int) -> None:
    heads, sees = 5, TOLD[mode](**settings)
    component = LAYOUTS[mode]
    made = load_path(component.target)(LayoutShape(blocks, heads), component.settings(**settings))
    told = [
        [[k <= q and sees(head, q, k, blocks) for k in range(blocks)] for q in range(blocks)] for head in range(heads)
    ]
    assert torch.equal(made, torch.tensor(told))


@pytest.mark.parametrize(("mode", "settings"), [each for each in CASES if each[0] in ("fixed", "variable")], ids=str)
@pytest.mark.parametrize("horizontal", [False, True])
def test_looking_both_ways_too(mode: str, settings: dict[str, Any], horizontal: bool) -> None:
    """Bidirectional: as told without the diagonal; the horizontal ones attend to all that are attended by all."""
    heads, blocks, sees = 5, 13, TOLD[mode](**settings)
    component = LAYOUTS[mode]
    both = component.settings(**settings, attention="bidirectional", horizontal_global_attention=horizontal)
    made = load_path(component.target)(LayoutShape(blocks, heads, causal=False), both)
    for head in range(heads):
        told = torch.tensor([[sees(head, q, k, blocks) for k in range(blocks)] for q in range(blocks)])
        if horizontal:
            told |= told.all(0)[:, None]
        assert torch.equal(made[head], told)

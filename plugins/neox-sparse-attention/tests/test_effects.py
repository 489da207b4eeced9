"""Each key of a layout does what it says: a change of the key alone, and what it changes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from neox_gpt.api import LayoutShape
from neox_sparse_attention.plugin import neox_sparse_layouts
from torch import Tensor

from neox_core.hooks.component import load_path

LAYOUTS = {each.name: each for each in neox_sparse_layouts()}
BLOCKS, HEADS = 12, 4


def made(mode: str, settings: dict[str, Any]) -> Tensor:
    both = settings.get("attention") == "bidirectional"
    component = LAYOUTS[mode]
    shape = LayoutShape(BLOCKS, HEADS, seed=3, causal=not both)
    drawn: Tensor = load_path(component.target)(shape, component.settings(**settings))
    return drawn


def rows(layout: Tensor) -> list[set[int]]:
    return [set(row.nonzero()[:, 0].tolist()) for row in layout[0]]


def sees_everywhere(layout: Tensor, columns: set[int]) -> bool:
    """Every row that comes after them sees the columns."""
    return all(columns & set(range(query + 1)) <= seen for query, seen in enumerate(rows(layout)))


def patterns(layout: Tensor) -> int:
    return len({tuple(one.flatten().tolist()) for one in layout})


PER_HEAD = {"different_layout_per_head": True}
BOTH = {"attention": "bidirectional"}
EFFECTS: dict[str, tuple[str, dict[str, Any], dict[str, Any], Callable[[Tensor], bool]]] = {
    # key: mode, settings without it, settings with it, what then holds and did not
    "different_layout_per_head": (
        "bigbird", {"num_random_blocks": 2}, {"num_random_blocks": 2, **PER_HEAD}, lambda x: patterns(x) == HEADS,
    ),
    "num_local_blocks": ("fixed", {}, {"num_local_blocks": 6}, lambda x: rows(x)[5] == set(range(6))),
    "num_global_blocks of fixed": ("fixed", {}, {"num_global_blocks": 2}, lambda x: sees_everywhere(x, {2, 3, 6, 7})),
    "num_global_blocks of bigbird": ("bigbird", {}, {"num_global_blocks": 3}, lambda x: sees_everywhere(x, {0, 1, 2})),
    "attention": ("fixed", BOTH, {"attention": "unidirectional"}, lambda x: not x.triu(1).any()),
    "horizontal_global_attention": (
        "fixed", BOTH, {**BOTH, "horizontal_global_attention": True}, lambda x: bool(x[:, [3, 7, 11]].all()),
    ),
    "num_different_global_patterns": (
        "fixed", PER_HEAD, {**PER_HEAD, "num_different_global_patterns": 4}, lambda x: patterns(x) == 4,
    ),
    "num_random_blocks": (
        "variable", {}, {"num_random_blocks": 2}, lambda x: rows(x)[4] > {0, 4} and len(rows(x)[4]) == 4,
    ),
    "local_window_blocks": (
        "variable",
        {"global_block_indices": ()},
        {"global_block_indices": (), "local_window_blocks": (2, 4)},
        lambda x: (rows(x)[1], rows(x)[5], rows(x)[9]) == ({0, 1}, {2, 3, 4, 5}, {6, 7, 8, 9}),
    ),
    "global_block_indices": (
        "bslongformer", {}, {"global_block_indices": (1, 5)}, lambda x: sees_everywhere(x, {1, 5}),
    ),
    "global_block_end_indices": (
        "bslongformer", {}, {"global_block_end_indices": (2,)}, lambda x: sees_everywhere(x, {0, 1}),
    ),
    "num_sliding_window_blocks": (
        "local", {}, {"num_sliding_window_blocks": 5}, lambda x: rows(x)[6] == {4, 5, 6},
    ),
    "mode": ("dense", {}, {}, lambda x: torch.equal(x, torch.ones_like(x).tril())),
}  # fmt: skip


@pytest.mark.parametrize("key", EFFECTS)
def test_a_key_does_what_it_says(key: str) -> None:
    mode, without, with_it, holds = EFFECTS[key]
    if key != "mode":
        assert not holds(made(mode, without))
    assert holds(made(mode, with_it))


def test_each_mode_is_a_layout_of_its_own() -> None:
    assert patterns(torch.stack([made(mode, {})[0] for mode in LAYOUTS])) == len(LAYOUTS)


def test_no_key_is_left_out() -> None:
    named = {key.partition(" of ")[0] for key in EFFECTS}
    offered = {field.name for each in LAYOUTS.values() for field in each.settings.__attrs_attrs__}
    assert offered - named == {"block"}  # the side of the layout, which the build computes

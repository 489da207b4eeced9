"""Each rule between the settings of a layout: broken, and just held."""

from types import SimpleNamespace
from typing import Any

import pytest
from neox_sparse_attention.plugin import neox_sparse_layouts
from neox_sparse_attention.rules import RULES, looks_where_the_model_does

SETTINGS = {each.name: each.settings for each in neox_sparse_layouts()}


def said(mode: str, settings: dict[str, Any], num_blocks: int = 8, *, causal: bool = True) -> list[str]:
    made: Any = SETTINGS[mode](**settings)
    found = [
        *looks_where_the_model_does(made, causal=causal),
        *(each for rule in RULES for each in rule(made, num_blocks)),
    ]
    return [f"{each.key.removeprefix('sparse_attention.')}: {each.message}" for each in found]


@pytest.mark.parametrize("mode", sorted(SETTINGS))
def test_defaults_hold(mode: str) -> None:
    assert said(mode, {}) == []


@pytest.mark.parametrize(
    ("mode", "broken", "message", "held"),
    [
        ("fixed", {"attention": "bidirectional"}, "attention: a decoder cannot look ahead", {}),
        ("variable", {"attention": "bidirectional"}, "attention: a decoder cannot look ahead", {}),
        (
            "fixed",
            {"horizontal_global_attention": True},
            "horizontal_global_attention: needs attention: bidirectional, which no decoder has",
            {},
        ),
        (
            "fixed",
            {"num_local_blocks": 6, "num_global_blocks": 4},
            "num_local_blocks: 6 is not a multiple of num_global_blocks 4",
            {"num_local_blocks": 6, "num_global_blocks": 3},
        ),
        (
            "fixed",
            {"num_different_global_patterns": 2},
            "num_different_global_patterns: 2 patterns need different_layout_per_head: true",
            {"num_different_global_patterns": 2, "different_layout_per_head": True},
        ),
        (
            "fixed",
            {"num_different_global_patterns": 3, "different_layout_per_head": True, "num_global_blocks": 2},
            "num_different_global_patterns: a window has room for 2, not 3",
            {"num_different_global_patterns": 2, "different_layout_per_head": True, "num_global_blocks": 2},
        ),
        (
            "variable",
            {"global_block_indices": (0, 8)},
            "global_block_indices: the sequence has 8 blocks, and none has number 8",
            {"global_block_indices": (0, 7)},
        ),
        (
            "variable",
            {"global_block_indices": (0, 3), "global_block_end_indices": (1,)},
            "global_block_end_indices: has 1 ends for 2 global_block_indices",
            {"global_block_indices": (0, 3), "global_block_end_indices": (1, 4)},
        ),
        (
            "bslongformer",
            {"global_block_indices": (3,), "global_block_end_indices": (3,)},
            "global_block_end_indices: 3 does not come after its start 3",
            {"global_block_indices": (3,), "global_block_end_indices": (4,)},
        ),
        (
            "bslongformer",
            {"global_block_indices": (3,), "global_block_end_indices": (9,)},
            "global_block_end_indices: 9 is more than the 8 blocks of the sequence",
            {"global_block_indices": (3,), "global_block_end_indices": (8,)},
        ),
        (
            "bigbird",
            {"num_random_blocks": 9},
            "num_random_blocks: 9 is more than the 8 blocks of the sequence",
            {"num_random_blocks": 8},
        ),
        (
            "local",
            {"num_sliding_window_blocks": 9},
            "num_sliding_window_blocks: 9 is more than the 8 blocks of the sequence",
            {"num_sliding_window_blocks": 8},
        ),
        (
            "bigbird",
            {"num_global_blocks": 9},
            "num_global_blocks: 9 is more than the 8 blocks of the sequence",
            {"num_global_blocks": 8},
        ),
    ],
)
def test_rules(mode: str, broken: dict[str, Any], message: str, held: dict[str, Any]) -> None:
    assert said(mode, broken) == [message]
    assert said(mode, held) == []


@pytest.mark.parametrize("mode", sorted(SETTINGS))
def test_a_layout_of_an_encoder_looks_both_ways(mode: str) -> None:
    """Where it has a key for that, whose default is a decoder's."""
    refused = "attention: is unidirectional, and the tokens of an encoder see those after them too"
    has_a_key = mode in ("fixed", "variable")
    assert said(mode, {}, causal=False) == ([refused] if has_a_key else [])
    if has_a_key:
        both = {"attention": "bidirectional"}
        assert said(mode, both, causal=False) == []
        assert said(mode, {**both, "horizontal_global_attention": True}, causal=False) == []


def test_a_third_partys_settings_are_left_alone() -> None:
    other: Any = SimpleNamespace(block=4)
    assert [problem for rule in RULES for problem in rule(other, 8)] == []
    assert [*looks_where_the_model_does(other, causal=True), *looks_where_the_model_does(other, causal=False)] == []

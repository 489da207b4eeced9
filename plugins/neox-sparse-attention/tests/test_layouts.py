"""Layouts as pictures: a row a block of queries, `#` a block of keys that it sees."""

import pytest
import torch
from neox_author.testing import load_only
from neox_gpt.api import LayoutShape
from neox_gpt.testing import check_sparse_layout
from neox_sparse_attention.plugin import neox_sparse_layouts
from torch import Tensor

from neox_core.hooks.component import load_path

LAYOUTS = {each.name: each for each in neox_sparse_layouts()}


def layout(
    name: str, num_blocks: int, num_heads: int = 1, shape: dict[str, object] | None = None, **settings
) -> Tensor:
    component = LAYOUTS[name]
    made = load_path(component.target)(
        LayoutShape(num_blocks, num_heads, **(shape or {})), component.settings(**settings)
    )
    assert made.dtype == torch.bool
    assert made.shape == (num_heads, num_blocks, num_blocks)
    return made


def picture(one: Tensor) -> list[str]:
    return ["".join("#" if seen else "." for seen in row) for row in one.tolist()]


def test_dense() -> None:
    assert picture(layout("dense", 3)[0]) == ["#..", "##.", "###"]
    assert picture(layout("dense", 3, shape={"causal": False})[0]) == ["###"] * 3


def test_fixed() -> None:
    assert picture(layout("fixed", 6, num_local_blocks=2)[0]) == [
        "#.....",
        "##....",
        ".##...",
        ".###..",
        ".#.##.",
        ".#.###",
    ]


def test_fixed_has_more_than_one_global_block() -> None:
    assert picture(layout("fixed", 8, num_local_blocks=4, num_global_blocks=2)[0])[4:] == [
        "..###...",
        "..####..",
        "..#####.",
        "..######",
    ]


def test_fixed_cuts_the_last_window_short() -> None:
    # windows of 4, 4 and 2 blocks; the global block of the last is where it would be, or the last there is
    assert picture(layout("fixed", 10)[0])[8:] == ["...#...##.", "...#...###"]


def test_fixed_looks_both_ways() -> None:
    made = layout("fixed", 4, num_local_blocks=2, attention="bidirectional")[0]
    assert picture(made) == [
        "##.#",
        "##.#",
        ".###",
        ".###",
    ]
    both = layout("fixed", 4, num_local_blocks=2, attention="bidirectional", horizontal_global_attention=True)[0]
    assert picture(both) == ["##.#", "####", ".###", "####"]
    assert torch.equal(both, both.T)


def test_heads_of_fixed_take_turns() -> None:
    made = layout("fixed", 8, 4, different_layout_per_head=True, num_different_global_patterns=2)
    assert [picture(one)[5] for one in made] == ["...###..", "..#.##..", "...###..", "..#.##.."]
    same = layout("fixed", 8, 4, different_layout_per_head=False, num_different_global_patterns=2)
    assert all(torch.equal(one, same[0]) for one in same)


def test_variable() -> None:
    assert picture(layout("variable", 7, local_window_blocks=(1, 2, 3), global_block_indices=(0,))[0]) == [
        "#......",
        "##.....",
        "###....",
        "#..#...",
        "#..##..",
        "#..###.",
        "#.....#",
    ]


def test_the_last_window_of_variable_repeats() -> None:
    made = layout("variable", 6, local_window_blocks=(2, 4), global_block_indices=())
    assert picture(made[0]) == ["#.....", "##....", "..#...", "..##..", "..###.", "..####"]


def test_global_blocks_of_variable_are_ranges_with_ends() -> None:
    made = layout("variable", 5, local_window_blocks=(1,), global_block_indices=(0, 3), global_block_end_indices=(2, 4))
    assert picture(made[0]) == ["#....", "##...", "###..", "##.#.", "##.##"]


def test_horizontal_rows_of_variable() -> None:
    made = layout(
        "variable",
        4,
        local_window_blocks=(1,),
        global_block_indices=(1,),
        attention="bidirectional",
        horizontal_global_attention=True,
    )
    assert picture(made[0]) == ["##..", "####", ".##.", ".#.#"]


def test_bigbird() -> None:
    settings = {"num_random_blocks": 0, "num_sliding_window_blocks": 3, "num_global_blocks": 1}
    assert picture(layout("bigbird", 5, **settings)[0]) == ["#....", "##...", "###..", "#.##.", "#..##"]
    wide = layout("bigbird", 5, shape={"causal": False}, **settings)[0]
    assert picture(wide) == ["#####", "###..", "####.", "#.###", "#..##"]
    assert not layout("bigbird", 5, **settings | {"num_global_blocks": 0})[0, 3, 0]


def test_bslongformer() -> None:
    settings = {"num_sliding_window_blocks": 3, "global_block_indices": (2,)}
    assert picture(layout("bslongformer", 5, **settings)[0]) == ["#....", "##...", "###..", "..##.", "..###"]
    wide = layout("bslongformer", 5, shape={"causal": False}, **settings)[0]
    assert picture(wide) == ["###..", "###..", "#####", "..###", "..###"]


def test_local_counts_half_of_the_window_on_either_side() -> None:
    assert picture(layout("local", 5, num_sliding_window_blocks=5)[0]) == ["#....", "##...", "###..", ".###.", "..###"]
    assert layout("local", 9, shape={"causal": False}, num_sliding_window_blocks=5)[0, 4].sum() == 5


@pytest.mark.parametrize("name", ["variable", "bigbird"])
@pytest.mark.parametrize("causal", [True, False])
def test_random_blocks_are_added_to_each_row(name: str, causal: bool) -> None:
    direction = {"attention": "unidirectional" if causal else "bidirectional"} if name == "variable" else {}
    shape = {"causal": causal, "seed": 3}
    without = layout(name, 12, 2, shape, num_random_blocks=0, **direction).sum(-1)
    made = layout(name, 12, 2, shape, num_random_blocks=3, **direction)
    free = torch.arange(1, 13) - without if causal else 12 - without
    assert torch.equal(made.sum(-1), without + free.clamp(max=3))
    if causal:
        assert not made.triu(1).any()


def test_the_draw_follows_from_seed_layer_and_head() -> None:
    def drawn(**shape: int) -> Tensor:
        return layout("bigbird", 24, 3, shape, num_random_blocks=2, different_layout_per_head=True)

    assert torch.equal(drawn(seed=1, layer=2), drawn(seed=1, layer=2))
    assert not torch.equal(drawn(seed=1, layer=2), drawn(seed=1, layer=3))
    assert not torch.equal(drawn(seed=1, layer=2), drawn(seed=2, layer=2))
    one = drawn(seed=1)
    assert not torch.equal(one[0], one[1])
    same = layout("bigbird", 24, 3, {"seed": 1}, num_random_blocks=2, different_layout_per_head=False)
    assert torch.equal(same[0], same[2])


@pytest.mark.parametrize("name", sorted(LAYOUTS))
def test_the_contract_is_kept_and_every_block_sees_itself(name: str) -> None:
    check_sparse_layout(load_only("neox-sparse-attention"), name)
    assert layout(name, 11, 2).diagonal(dim1=1, dim2=2).all()


@pytest.mark.parametrize("count", [1, 3])
def test_all_choices_are_equally_likely(count: int) -> None:
    """Blocks before the window of the last of 9 are 1 to 6, seen by a share of count / 6 of 3000 heads each."""
    settings = {"num_random_blocks": count, "different_layout_per_head": True}
    last = layout("bigbird", 9, 3000, {"seed": 5}, **settings)[:, 8]
    share = count / 6
    assert ((last[:, 1:7].double().mean(0) - share).abs() < 4 * (share * (1 - share) / 3000) ** 0.5).all()
    assert (last[:, 1:7].sum(1) == count).all()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("dense", {"block": 0}),
        ("fixed", {"num_local_blocks": 0}),
        ("fixed", {"num_different_global_patterns": 0}),
        ("variable", {"local_window_blocks": ()}),
        ("variable", {"local_window_blocks": (2, 0)}),
        ("variable", {"global_block_indices": (1, 1)}),
        ("bslongformer", {"global_block_indices": (-1,)}),
        ("bigbird", {"num_random_blocks": -1}),
        ("local", {"num_sliding_window_blocks": 0}),
    ],
)
def test_values_that_make_no_layout(name: str, settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings)) + "|must be"):
        LAYOUTS[name].settings(**settings)

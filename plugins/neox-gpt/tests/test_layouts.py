"""Layouts of a plan in a model."""

import pytest
import torch
from attrs import evolve
from neox_gpt.attention.layout_tables import build_tables
from neox_gpt.build import build_model
from neox_gpt.config.plan import GPTPlan
from neox_gpt.gpt import GPT
from neox_gpt.testing import example_decoder
from torch import Tensor

from neox_core.errors import PluginError
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.runfile import ComponentRef


def ahead(shape, settings) -> torch.Tensor:
    return torch.ones(shape.num_heads, shape.num_blocks, shape.num_blocks, dtype=torch.bool)


def component(kind: str, name: str, target: str, settings_class: str | None = None, **settings: object) -> ComponentRef:
    return ComponentRef(kind, name, "neox-any", "0.1.0", target, settings_class, settings)


def layout(name: str, cls: str, **settings: object) -> ComponentRef:
    home = "neox_sparse_attention"
    return component("sparse layout", name, f"{home}.{name}:{name}", f"{home}.settings:{cls}", block=8, **settings)


DENSE = layout("dense", "DenseSettings")
LOCAL = layout("local", "LocalSettings", num_sliding_window_blocks=3)
BIGBIRD = layout("bigbird", "BigBirdSettings", num_random_blocks=1, different_layout_per_head=True)
PLAN = evolve(
    example_decoder(),
    num_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    intermediate_size=48,
    seq_length=64,
    max_position_embeddings=128,
    norm=component("norm", "rmsnorm", "neox_norms.rmsnorm:RMSNorm", "neox_norms.settings:RMSNormSettings"),
    activation=component("activation", "gelu", "neox_activations.gelu:Gelu"),
    position=component("position", "rotary", "neox_positions.rotary:Rotary", "neox_positions.settings:RotarySettings"),
    padded_vocab_size=64,
    init_std=0.2,
)
CONTEXT = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1)


def model(layouts: tuple[ComponentRef, ...] = (), of_layer: tuple[int | None, ...] = (), **changes: object) -> GPT:
    return build_model(evolve(PLAN, layouts=layouts, layout_of_layer=of_layer, **changes), 64, CONTEXT)


def tokens(seq: int = 64) -> Tensor:
    return torch.randint(64, (2, seq), generator=torch.Generator().manual_seed(3))


def test_a_dense_layout_is_attention_to_everything_before() -> None:
    plain, sparse = model(), model((DENSE,), (0, 0))
    losses = [each.loss(tokens(), tokens().roll(-1, 1)) for each in (plain, sparse)]
    torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=1e-5)
    for each in losses:
        each.backward()
    for (name, one), (_, other) in zip(plain.named_parameters(), sparse.named_parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-5, msg=name)


def test_each_layer_has_its_own() -> None:
    made = model((LOCAL, BIGBIRD), (None, 1))
    assert sorted(made.tables) == [1]
    assert model((LOCAL, BIGBIRD), (0, 1)).tables[0].layout.sum() < made.tables[1].layout.sum()


@pytest.mark.parametrize("block", [4, 32])
def test_a_sequence_has_as_many_blocks_as_fit(block: int) -> None:
    plan = evolve(PLAN, layouts=(evolve(LOCAL, settings={"block": block}),), layout_of_layer=(0, 0))
    table = build_tables(plan, CONTEXT)[1]
    assert (table.block, table.layout.shape) == (block, (4, 64 // block, 64 // block))


def test_layers_of_one_layout_share_a_table_unless_it_is_drawn() -> None:
    local = model((LOCAL,), (0, 0)).tables
    assert local[0] is local[1]
    drawn = model((BIGBIRD,), (0, 0)).tables
    assert not torch.equal(drawn[0].layout, drawn[1].layout)


def test_a_token_out_of_sight_changes_nothing() -> None:
    """Two layers of a window of 3 blocks, of which the one ahead is cut off: a token reaches 2 blocks back."""
    made, one = model((LOCAL,), (0, 0)), tokens()
    other = one.clone()
    other[:, :40] = (other[:, :40] + 1) % 64
    with torch.no_grad():
        before, after = made.logits(one), made.logits(other)
    assert torch.equal(before[:, 56:], after[:, 56:])
    assert not torch.equal(before[:, 55], after[:, 55])


@pytest.mark.parametrize("layouts", [(LOCAL,), (BIGBIRD,)])
def test_a_cache_changes_nothing(layouts: tuple[ComponentRef, ...]) -> None:
    made, text = model(layouts, (None, 0)), tokens(50)
    with torch.no_grad():
        whole = made.logits(text)
        cache = made.new_cache(64)
        parts = [made.logits(text[:, start:stop], cache) for start, stop in ((0, 21), (21, 22), (22, 45), (45, 50))]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-5)


def test_the_window_is_what_there_are_layouts_for() -> None:
    assert model().window == 128
    assert model((LOCAL,), (None, 0)).window == 64


@pytest.mark.parametrize("plan", [evolve(PLAN, num_kv_heads=2), evolve(PLAN, num_unique_layers=1)])
def test_shared_keys_and_shared_layers(plan: GPTPlan) -> None:
    changes = {"num_kv_heads": plan.num_kv_heads, "num_unique_layers": plan.num_unique_layers}
    losses = [each.loss(tokens(), tokens()) for each in (model(**changes), model((DENSE,), (None, 0), **changes))]
    torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=1e-5)


def test_a_layout_that_looks_ahead_is_refused() -> None:
    wrong = component("sparse layout", "ahead", f"{__name__}:ahead", "neox_sparse_attention.settings:DenseSettings")
    with pytest.raises(PluginError, match=r"ahead \S+: makes no lower triangular layout"):
        build_tables(evolve(PLAN, layouts=(wrong,), layout_of_layer=(0, None)), CONTEXT)

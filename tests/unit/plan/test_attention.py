"""From sparsity and attention-config to the layouts of a plan."""

from pathlib import Path
from typing import Any

import pytest
from neox_gpt.config.plan import GPTPlan

from neox_core.api import Component, hookimpl
from neox_core.config.report import ProblemsError, render
from neox_core.hooks.loader import load_plugins
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run


def plan(tmp_path: Path, text: str, catalog: Any, *sets: str) -> GPTPlan:
    (tmp_path / "c.yml").write_text(text)
    return prepare_run([tmp_path / "c.yml"], sets, catalog=catalog, machine=Machine(0, 2)).plan.model


def test_no_layer_is_sparse_unless_one_is_asked_for(tmp_path: Path, text: str, catalog: Any) -> None:
    made = plan(tmp_path, text, catalog)
    assert (made.layouts, made.layout_of_layer) == ((), ())


def test_sparsity_without_a_block_is_what_gpt_neox_builds(tmp_path: Path, text: str) -> None:
    """Its VariableSparsityConfig(num_heads, attention="unidirectional"), with DeepSpeed's defaults for the rest."""
    made = plan(tmp_path, text, load_plugins(), "sparsity=all", "seq-length=32")
    (layout,) = made.layouts
    assert layout.name == "variable"
    assert layout.settings == {
        "block": 16,
        "different_layout_per_head": False,
        "num_random_blocks": 0,
        "local_window_blocks": [4],
        "global_block_indices": [0],
        "global_block_end_indices": None,
        "attention": "unidirectional",
        "horizontal_global_attention": False,
    }


def test_sparsity_takes_the_layout_of_the_block(tmp_path: Path, text: str, catalog: Any) -> None:
    made = plan(tmp_path, text, catalog, "sparsity=interspersed", "sparse_attention={mode: local, window: 3}")
    assert [(each.name, each.settings) for each in made.layouts] == [("local", {"block": 16, "window": 3})]
    assert made.layout_of_layer == (None, 0)
    assert plan(tmp_path, text, catalog, "sparsity=all", "sparse_attention.block=16").layouts[0].name == "fixed"


@pytest.mark.parametrize("local", ["local", "everything:local"])
def test_each_layer_has_its_own_layout(tmp_path: Path, text: str, catalog: Any, local: str) -> None:
    """A setting goes to every layout that has it, by whichever name the layout is called."""
    made = plan(
        tmp_path,
        text,
        catalog,
        "num-layers=4",
        f"attention-config=[[[global, '{local}'], 1], [[sparse_fixed, '{local}'], 1]]",
        "sparsity-config={block: 8, window: 5}",
    )
    assert made.layout_of_layer == (None, 0, 1, 0)
    assert [(each.name, each.settings) for each in made.layouts] == [
        ("local", {"block": 8, "window": 5}),
        ("fixed", {"block": 8}),
    ]


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("sparsity=all", "sparse_attention.blok=8"), "sparse_attention.blok: unknown key (did you mean 'block'?)"),
        (("sparse_attention.blok=8",), "sparse_attention.blok: unknown key (did you mean 'block'?)"),
        (("sparsity=all", "sparse_attention.window=8"), "sparse_attention.window: unknown key"),
        (("sparsity=all", "sparse_attention.mode=3"), "sparse_attention.mode: must be text, not 3"),
        (("sparsity=all", "sparse_attention.mode=fixd"), "sparse_attention.mode: no sparse layout 'fixd'"),
        (("attention-config=[[[fixd], all]]",), "attention-config: no sparse layout 'fixd'"),
        (("attention-config=[[global, 1]]",), "attention-config: must be a list of names"),
        (
            ("attention-config=[[[local], all]]", "sparse_attention.mode=fixed"),
            "sparse_attention.mode: does nothing: attention-config does not name sparse",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, catalog: Any, sets: tuple[str, ...], said: str) -> None:
    with pytest.raises(ProblemsError) as caught:
        plan(tmp_path, text, catalog, *sets)
    assert said in render(caught.value.problems)


def test_a_layout_without_a_block_names_its_plugin(tmp_path: Path, text: str, plugins: Any, everything: Any) -> None:
    class Blockless:
        @hookimpl
        def neox_sparse_layouts(self) -> list[Component]:
            return [Component("round", "math:floor")]

    catalog = plugins(everything=everything, blockless=Blockless())
    with pytest.raises(ProblemsError, match="the settings of blockless:round have no `block`"):
        plan(tmp_path, text, catalog, "sparsity=all", "sparse_attention={mode: round}")

"""Drawings of layouts."""

from pathlib import Path

import pytest
import torch
from attrs import evolve
from neox_gpt.attention.draw_layouts import Drawing, drawings, in_text, write_picture
from neox_gpt.testing import example_decoder
from PIL import Image

from neox_core.errors import ConfigError
from neox_core.plan.runfile import ComponentRef


def layout(name: str, cls: str, **settings: object) -> ComponentRef:
    home = "neox_sparse_attention"
    target, settings_class = f"{home}.{name}:{name}", f"{home}.settings:{cls}"
    return ComponentRef("sparse layout", name, home, "0", target, settings_class, {"block": 4, **settings})


FIXED = layout(
    "fixed", "FixedSettings", num_local_blocks=2, different_layout_per_head=True, num_different_global_patterns=2
)
LOCAL = layout("local", "LocalSettings", num_sliding_window_blocks=3)


def found(of_layer: tuple[int | None, ...], *layouts: ComponentRef) -> list[Drawing]:
    model = example_decoder()
    shape = evolve(model, num_layers=len(of_layer), num_attention_heads=4, seq_length=16)
    return drawings(evolve(shape, layouts=layouts, layout_of_layer=of_layer), seed=1)


def test_what_is_alike_is_drawn_once() -> None:
    titles = [each.title for each in found((0, None, 1, 0, 0), FIXED, LOCAL)]
    assert titles == [
        # 4 blocks: 10 at or before the diagonal
        "layers 0, 3-4, heads 0, 2: fixed, 4 blocks of 4 tokens, 80.0% of what is before",
        "layers 0, 3-4, heads 1, 3: fixed, 4 blocks of 4 tokens, 80.0% of what is before",
        "layer 2, heads 0-3: local, 4 blocks of 4 tokens, 70.0% of what is before",
    ]


def test_a_drawing_in_text() -> None:
    (local,) = found((0,), LOCAL)
    assert list(in_text(local))[1:] == ["  ██", "  ████", "    ████", "      ████"]


def test_a_long_sequence_is_drawn_in_shades() -> None:
    seen = torch.zeros(96, 96, dtype=torch.bool)
    seen[0, 0] = seen[2:4, 2:4] = True
    seen[4, 4:6] = seen[5, 4] = True
    lines = list(in_text(Drawing([0], [0], "mine", 1, seen)))
    assert lines[1:4] == ["  ░░", "    ██", "      ▓▓"]
    assert len(lines) == 1 + 48


@pytest.mark.parametrize("name", ["layout.png", "layout.svg"])
def test_a_picture(tmp_path: Path, name: str) -> None:
    write_picture(found((0, 1), FIXED, LOCAL), tmp_path / name)
    if name.endswith("svg"):
        assert "<svg" in (tmp_path / name).read_text()
    else:
        with Image.open(tmp_path / name) as picture:
            assert picture.height > picture.width


def test_a_picture_of_no_known_kind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write the picture"):
        write_picture(found((0,), LOCAL), tmp_path / "layout.doc")

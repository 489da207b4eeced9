"""Which layout each layer has."""

import pytest
from neox_gpt.config.attention_config import layer_layouts, layouts_used, pattern


@pytest.mark.parametrize(
    ("sparsity", "expected"),
    [("none", (None,) * 5), ("all", ("big",) * 5), ("interspersed", (None, "big", None, "big", None))],
)
def test_sparsity(sparsity: str, expected: tuple[str | None, ...]) -> None:
    assert layer_layouts(5, sparsity, "big", None) == expected
    assert set(layouts_used(sparsity, "big", None)) == {*expected} - {None}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ([[["global"], 4]], (None,) * 4),
        ([[["local", "global"], "all"]], ("local", None, "local", None)),
        (
            [[["global"], 1], [["sparse_fixed"], 1], [["sparse_variable", "flash"], 1]],
            (None, "fixed", "variable", None),
        ),
        (["sparse", "global", "mine", "bigbird"], ("big", None, "mine", "bigbird")),
    ],
)
def test_attention_config(written: list[object], expected: tuple[str | None, ...]) -> None:
    assert layer_layouts(4, "none", "big", written) == expected
    assert set(layouts_used("none", "big", written)) == {*expected} - {None}


@pytest.mark.parametrize("written", [[[["global"], 3]], [[["local", "global", "global"], "all"]], ["global"]])
def test_attention_config_of_another_number_of_layers(written: list[object]) -> None:
    with pytest.raises(ValueError, match="4"):
        layer_layouts(4, "none", "big", written)


@pytest.mark.parametrize(
    "written",
    [[], [[["global"], 0]], [[["global"], True]], [[["global"], "some"]], [[[], 1]], [["global", 1]], [[[3], 1]], [4]],
)
def test_forms_that_mean_nothing(written: list[object]) -> None:
    with pytest.raises(ValueError, match="must be a list"):
        pattern(None, None, written)

"""Windows of Qwen and Gemma, of all the ways to write them: transformers' numbers in and out, or an error."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from families import SIZES, family_of, imported_to, ours, roughened
from neox_hf.plugin import neox_model_families
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from neox_core.errors import ConfigError
from neox_core.hooks.component import load_path

FULL, SLIDING = "full_attention", "sliding_attention"
FOUR = SIZES | {"num_hidden_layers": 4, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": None}
ON = {"use_sliding_window": True, "sliding_window": 5}
BASES = {"rope_theta": 5e5, "rope_local_base_freq": 2e4}
CASES: dict[str, tuple[str, dict[str, Any], list[int]]] = {
    "off, as published": ("qwen2", {"use_sliding_window": False, "sliding_window": 9, "max_window_layers": 1}, []),
    "from a layer on": ("qwen2", {**ON, "max_window_layers": 2}, [2, 3]),
    "in all layers": ("qwen3", {**ON, "max_window_layers": -1}, [0, 1, 2, 3]),
    "from no layer on": ("qwen3", {**ON, "max_window_layers": 4}, []),
    "the smallest": ("qwen2", {**ON, "sliding_window": 2, "max_window_layers": 3}, [3]),
    "listed": ("qwen3", {**ON, "max_window_layers": 1, "layer_types": [SLIDING, FULL, FULL, SLIDING]}, [0, 3]),
    "every other": ("gemma2", {"sliding_window": 5}, [0, 2]),
    "none": ("gemma2", {"sliding_window": 5, "layer_types": [FULL] * 4}, []),
    "another pattern": ("gemma3_text", {"sliding_window": 5, "sliding_window_pattern": 3, **BASES}, [0, 1, 3]),
    "a pattern of none": ("gemma3_text", {"sliding_window": 5, "sliding_window_pattern": 1, **BASES}, []),
    "the list wins": (
        "gemma3_text",
        {"sliding_window": 5, "sliding_window_pattern": 2, "layer_types": [FULL, FULL, SLIDING, FULL]},
        [2],
    ),
}
TOKENS = torch.randint(96, (2, 40), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize(("family", "written", "layers"), CASES.values(), ids=CASES)
def test_logits_in_and_out(family: str, written: dict[str, Any], layers: list[int], tmp_path: Path) -> None:
    """The file has what is written here, and no list of layers that transformers has made of it."""
    keys = FOUR if family != "qwen2" else {key: value for key, value in FOUR.items() if key != "head_dim"}
    torch.manual_seed(1)
    model = roughened(AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**keys, **written)))
    model.save_pretrained(tmp_path / "theirs")
    file = tmp_path / "theirs/config.json"
    told = json.loads(file.read_text())
    without = {"layer_types", "rope_parameters"} if "rope_theta" in written else {"layer_types"}
    file.write_text(json.dumps({key: value for key, value in told.items() if key not in without} | written))
    expected = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs").eval()(TOKENS).logits
    plan = imported_to(tmp_path / "theirs", tmp_path / "ours")
    assert [layer for layer, width in enumerate(plan.model.windows or ()) if width is not None] == layers
    torch.testing.assert_close(ours(plan, tmp_path / "ours").eval().logits(TOKENS), expected, rtol=0, atol=1e-4)
    file.write_text(json.dumps(family_of(model).config(plan.model, 96)))
    back = AutoModelForCausalLM.from_pretrained(tmp_path / "theirs").eval()(TOKENS).logits
    torch.testing.assert_close(back, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "change", "said"),
    [
        ("qwen2", {**ON, "sliding_window": "5"}, "sliding_window is '5', and not a whole number"),
        ("mistral", {"sliding_window": "5"}, "sliding_window is '5', and not a whole number"),
        ("qwen2", {**ON, "sliding_window": 5.0}, "sliding_window is 5.0, and not a whole number"),
        ("qwen2", {**ON, "sliding_window": 1, "max_window_layers": 0}, "a window of 2 tokens or more"),
        ("qwen2", {**ON, "use_sliding_window": "no"}, "use_sliding_window is 'no'"),
        ("qwen3", {**ON, "max_window_layers": None}, "max_window_layers is None"),
        ("qwen3", {**ON, "layer_types": [{}, FULL]}, "layer_types has {}"),
        ("qwen3", {"sliding_window": 5, "layer_types": [FULL, SLIDING]}, "sliding_window is None"),
        ("gemma2", {"sliding_window_pattern": 3}, "sliding_window_pattern is 3"),
        ("gemma3_text", {"sliding_window_pattern": 0}, "sliding_window_pattern is 0"),
        ("gemma3_text", {"_sliding_window_pattern": 5}, "_sliding_window_pattern is 5"),
        ("gemma3_text", {"rope_parameters": {"rope_theta": 5e5}}, "rope_parameters has something else"),
    ],
)
def test_a_window_that_is_none_is_refused(family: str, change: dict[str, Any], said: str) -> None:
    targets = {component.name: component.target for component in neox_model_families()}
    with pytest.raises(ConfigError, match=said):
        load_path(targets[family])().keys({**SIZES, "head_dim": 16, **change})

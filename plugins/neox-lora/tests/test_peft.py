"""Adapters alone in PEFT's files: with the base they are our model, by their formula, and by PEFT where it is."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from lora_runs import CONTEXT, trained
from neox_gpt.api import build_model
from safetensors.torch import load_file

from neox_core.checkpoint.read import read_weights
from neox_core.cli.main import neox

pytest.importorskip("transformers")
TOKENS = torch.arange(64).view(4, 16)
FORMS = {
    "some layers": ("lora.rank=3", "lora.alpha=5", "lora.dropout=0.3"),
    "all layers, another rank": ('lora.target-modules=["*"]', "lora.rank=5", "lora.alpha=7.5"),
    "one layer": ("lora.target-modules=[layers.1.attention.output]",),
}


def export(*words: object) -> Result:
    return CliRunner().invoke(neox, ["checkpoint", "export-peft", *map(str, words)])


@pytest.fixture
def tune(resolve: Callable[..., Any], tmp_path: Path) -> Callable[..., tuple[Any, Path]]:
    def _tune(*sets: str) -> tuple[Any, Path]:
        base = [each for each in sets if not each.startswith("lora.")]
        trained(resolve(*base, f"save={tmp_path}/base", "save-interval=3").plan)
        load = (f"load={tmp_path}/base", "finetune=true", f"save={tmp_path}/tuned", "save-interval=3")
        plan = resolve("lora.enabled=true", *sets, *load).plan
        trained(plan)
        return plan, tmp_path / "tuned/step-00000003"

    return _tune


def base_in_transformers(folder: Path) -> Any:
    """What `neox checkpoint export-hf` writes of the base, loaded."""
    from neox_gpt.api import saved_run
    from neox_hf.export import export_hf
    from neox_hf.llama import Llama
    from transformers import AutoModelForCausalLM

    from neox_core.hooks.loader import load_plugins

    checkpoint, plan = saved_run(folder / "base", load_plugins())
    export_hf(checkpoint, plan, folder / "base-hf", Llama())
    return AutoModelForCausalLM.from_pretrained(folder / "base-hf", dtype=torch.float32).eval()


@pytest.mark.parametrize("sets", FORMS.values(), ids=FORMS.keys())
def test_base_and_adapters_are_our_model(tune: Callable[..., Any], tmp_path: Path, sets: tuple[str, ...]) -> None:
    """To 1e-4: the formula of Hu et al. 2021 on transformers' model here, and PEFT's own reading where it is."""
    plan, checkpoint = tune(*sets)
    with torch.no_grad():
        compare(plan, checkpoint, tmp_path)


def compare(plan: Any, checkpoint: Path, tmp_path: Path) -> None:
    ours = build_model(plan.model, 64, CONTEXT, read_weights(checkpoint)).eval().logits(TOKENS)
    out = tmp_path / "adapters"
    result = export(tmp_path / "tuned", "--out", out, "--base", tmp_path / "base-hf", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["wrote"] == str(out)
    model = base_in_transformers(tmp_path)
    assert (model(TOKENS).logits - ours).abs().max() > 0.01
    config = json.loads((out / "adapter_config.json").read_text())
    tensors = load_file(out / "adapter_model.safetensors")
    assert 2 * len(config["target_modules"]) == len(tensors)
    if find_peft():
        from peft import PeftModel

        adapted = PeftModel.from_pretrained(base_in_memory(tmp_path), tmp_path / "adapters").eval()
        used = {name for name, each in adapted.named_parameters() if "lora_" in name}
        assert {name.replace(".default", "") for name in used} == set(tensors)
        torch.testing.assert_close(adapted(TOKENS).logits, ours, rtol=0, atol=1e-4)
    for module in config["target_modules"]:
        a, b = (tensors[f"base_model.model.{module}.lora_{part}.weight"] for part in "AB")
        model.get_submodule(module).weight += config["lora_alpha"] / config["r"] * b @ a
    torch.testing.assert_close(model(TOKENS).logits, ours, rtol=0, atol=1e-4)


def find_peft() -> bool:
    from importlib.util import find_spec

    return find_spec("peft") is not None


def base_in_memory(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder / "base-hf", dtype=torch.float32).eval()


def test_what_has_no_adapters_is_refused(tune: Callable[..., Any], tmp_path: Path) -> None:
    tune()
    result = export(tmp_path / "base", "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "the model changes of this run are: none" in result.output
    assert "neox checkpoint export-hf" in result.output
    result = export(tmp_path / "tuned", "--out", tmp_path / "base")
    assert result.exit_code == 2
    assert "exists already" in result.output
    result = export(tmp_path / "tuned", "--out", tmp_path / "out", "--family", "gpt2")
    assert result.exit_code == 2
    assert "no family has this model: gpt2:" in result.output
    assert not (tmp_path / "out").exists()


def test_a_family_of_transposed_weights_is_refused() -> None:
    """As of GPT-2, whose layers are [inputs, outputs] in its files."""
    from neox_lora.peft import _parts

    from neox_core.errors import ConfigError

    up, down = torch.randn(6, 2), torch.randn(2, 6)
    with pytest.raises(ConfigError, match="family gpt2: its layers have transposed weights"):
        _parts(lambda ours: (ours.T,), up, down, "gpt2")
    parts = _parts(lambda ours: ours.chunk(2), up, down, "llama")
    assert [each.shape for each in parts] == [(3, 2), (3, 2)]

"""Adapters against their closed form: merged, generated with, exported, and what a checkpoint has to hold."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lora_runs import CONTEXT, ON, trained
from neox_gpt.api import FoldedReader, build_model
from neox_gpt.testing import check_model_change
from torch import Tensor

from neox_core.checkpoint.read import read_weights
from neox_core.errors import CheckpointError, NeoxError
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.testing import assert_light, load_only

EXACT = BuildContext(torch.device("cpu"), torch.float64, Groups(None, None, 0, 1), seed=1)
TOKENS = torch.arange(64).view(4, 16)


def test_listing_is_light() -> None:
    assert_light("neox-lora")


@pytest.mark.parametrize(
    "block",
    [{}, {"rank": 3, "alpha": 2.0, "dropout": 0.4}, {"target_modules": ["mlp.down"]}, {"target_modules": ["*"]}],
)
def test_it_keeps_the_contract(block: dict[str, Any]) -> None:
    check_model_change(load_only("neox-lora"), "lora", lora=block)


def test_the_model_starts_as_its_base(resolve: Callable[..., Any]) -> None:
    base, changed = (build_model(resolve(*sets).plan.model, 64, CONTEXT).eval() for sets in ((), ON))
    assert torch.equal(base.logits(TOKENS), changed.logits(TOKENS))


@torch.no_grad()
def test_merged_equals_adapter(tuned: tuple[Any, Path]) -> None:
    """In float64, to 1e-12; what is merged is computed here."""
    plan, checkpoint = tuned
    weights = {name: weight.double() for name, weight in read_weights(checkpoint).items()}
    adapted = exact_logits(plan.model, weights)
    merged = {name: weight for name, weight in weights.items() if "changes" not in name}
    for name in merged:
        at = name.removesuffix("weight") + "changes.lora."
        if f"{at}up" in weights:
            assert weights[f"{at}up"].abs().max() > 1e-3
            merged[name] = merged[name] + 5 / 3 * weights[f"{at}up"] @ weights[f"{at}down"]
    reader = FoldedReader(checkpoint, plan.model)
    plain = exact_logits(reader.plan, merged)
    assert reader.plan.changes is None
    torch.testing.assert_close(adapted, plain, rtol=0, atol=1e-12)
    assert (adapted - exact_logits(reader.plan, base_of(weights))).abs().max() > 0.1
    assert set(reader.shapes("weight")) == set(merged)
    for name, weight in merged.items():
        torch.testing.assert_close(reader.tensor("weight", name).double(), weight, rtol=0, atol=1e-7)


def exact_logits(model: Any, weights: dict[str, Tensor]) -> Tensor:
    """In float64, to which a model is moved after its weights are set in fp32."""
    built = build_model(model, 64, EXACT).eval()
    for name, parameter in built.named_parameters():
        parameter.copy_(weights[name])
    return built.logits(TOKENS)


def base_of(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight for name, weight in weights.items() if "changes" not in name}


@torch.no_grad()
def test_generates_with_a_cache_as_without(tuned: tuple[Any, Path]) -> None:
    plan, checkpoint = tuned
    model = build_model(plan.model, 64, CONTEXT, read_weights(checkpoint)).eval()
    cache = model.new_cache(capacity=16)
    steps = [model.last_logits(TOKENS[:, at : at + 1], cache) for at in range(16)]
    torch.testing.assert_close(torch.stack(steps, 1), model.logits(TOKENS), rtol=0, atol=1e-5)


def test_an_export_is_merged(tuned: tuple[Any, Path], tmp_path: Path) -> None:
    """Its own comparison with transformers' Llama says so, and the notes that it was made."""
    pytest.importorskip("transformers")
    from neox_hf.export import export_hf
    from neox_hf.plugin import neox_model_families
    from safetensors.torch import load_file

    from neox_core.hooks.component import load_path

    plan, checkpoint = tuned
    families = {each.name: load_path(each.target)() for each in neox_model_families()}
    notes = export_hf(checkpoint, plan, tmp_path / "out", families["llama"])
    assert any("the same logits" in note for note in notes)
    (file,) = (tmp_path / "out").glob("*.safetensors")
    reader = FoldedReader(checkpoint, plan.model)
    down = load_file(file)["model.layers.1.mlp.down_proj.weight"]
    assert torch.equal(down, reader.tensor("weight", "layers.1.mlp.down.weight"))
    assert not torch.equal(down, read_weights(checkpoint)["layers.1.mlp.down.weight"])


def test_what_a_checkpoint_has_to_hold(resolve: Callable[..., Any], tuned: tuple[Any, Path], tmp_path: Path) -> None:
    """Only `finetune` takes a base without adapters; a damaged adapter is no base; a base run takes no adapters."""
    load = f"load={tmp_path}/base"
    with pytest.raises(CheckpointError, match=r"made for another model: no layers.0.attention.qkv.changes.lora.down"):
        trained(resolve(*ON, load, "train-iters=4").plan, 4)
    with pytest.raises(CheckpointError, match=r"changes.lora.down is not in this model"):
        trained(resolve(f"load={tmp_path}/tuned", "finetune=true").plan)
    other = ("lora.enabled=true", "lora.rank=4", f"load={tmp_path}/tuned", "finetune=true")
    with pytest.raises(CheckpointError, match=r"changes.lora.down is \[3, 32\], this model has \[4, 32\]"):
        trained(resolve(*other).plan)
    trained(resolve(*ON, f"load={tmp_path}/tuned", "train-iters=4", "override-lr-scheduler=true").plan, 4)


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("lora.rank=0",), "lora.rank"),
        (("lora.dropout=1.5",), "lora.dropout"),
        (("lora.target-modules=[]",), "lora.target"),
        (("lora.target-modules=[attention.q]",), "lora: lora changes no layer of this model"),
        (("lora.ranks=2",), "lora.ranks"),
        (("attention-config=[[[global, local], 7]]",), "attention-config: names the attention of 14 layers"),
        (("mlp-type=[[[regular], 7]]",), "mlp-type: names the feed-forward of 7 layers"),
    ],
)
def test_what_cannot_be_is_refused(resolve: Callable[..., Any], sets: tuple[str, ...], said: str) -> None:
    with pytest.raises(NeoxError, match=said):
        resolve(*ON, *sets)

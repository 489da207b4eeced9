"""Mixtral, randomly initialised: the same logits here, the same bits after a round trip, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from families import SIZES, imported_to, ours, roughened, tensors
from neox_hf.commands import prepare_import
from neox_hf.export import choose_family, export_hf
from neox_hf.plugin import neox_model_families
from transformers import MixtralConfig, MixtralForCausalLM

from neox_core.errors import ConfigError
from neox_core.hooks.component import load_path
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run

SMALL = {**SIZES, "num_key_value_heads": 2, "num_local_experts": 5, "router_aux_loss_coef": 0.03}
FAMILIES = {each.name: load_path(each.target)() for each in neox_model_families()}


@torch.no_grad()
def test_logits_and_a_round_trip(tmp_path: Path) -> None:
    torch.manual_seed(5)
    theirs = roughened(MixtralForCausalLM(MixtralConfig(**SMALL)))
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="40KB")
    plan = imported_to(tmp_path / "theirs", tmp_path / "ours", file_bytes=50_000)
    tokens = torch.randint(96, (3, 40), generator=torch.Generator().manual_seed(7))
    expected = theirs(tokens).logits
    assert expected.std() > 0.5
    torch.testing.assert_close(ours(plan, tmp_path / "ours").eval().logits(tokens), expected, rtol=0, atol=1e-4)
    family = choose_family(plan.model, FAMILIES)
    notes = export_hf(tmp_path / "ours/step-00000000", plan, tmp_path / "out", family, file_bytes=60_000)
    assert any("the same logits" in note for note in notes)
    given, written = tensors(tmp_path / "theirs"), tensors(tmp_path / "out")
    assert given.keys() == written.keys()
    assert all(torch.equal(given[name], written[name]) for name in given)
    assert imported_to(tmp_path / "out", tmp_path / "again").model == plan.model
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert (config["model_type"], config["router_aux_loss_coef"]) == ("mixtral", 0.03)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shared_expert_intermediate_size": 8}, "shared_expert_intermediate_size is not understood"),
        ({"router_jitter_noise": 0.1}, "router_jitter_noise is 0.1"),
        ({"num_local_experts": 1}, "num_local_experts is 1"),
    ],
)
def test_a_mixtral_that_cannot_be_imported_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    config = {**MixtralConfig(**SMALL).to_diff_dict(), "model_type": "mixtral", **SMALL, **changes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=said):
        prepare_import(tmp_path, tmp_path / "out", None, load_plugins())


def test_only_routers_of_mixtral_are_exported_as_mixtral(tmp_path: Path) -> None:
    MixtralForCausalLM(MixtralConfig(**SMALL)).save_pretrained(tmp_path / "theirs")
    prepare_import(tmp_path / "theirs", tmp_path / "out", None, load_plugins())
    sets = ["moe-normalize-expert-weights=false", "seq-length=8", "data-path=none", "train-iters=1"]
    sets += ["train_micro_batch_size_per_gpu=1", "optimizer={type: Adam, params: {lr: 1e-4}}"]
    other = prepare_run([tmp_path / "out/model.yml"], sets, catalog=load_plugins(), start=False).plan
    with pytest.raises(ConfigError, match="mixtral: Mixtral has moe-router-type: topk and moe-normalize"):
        choose_family(other.model, FAMILIES)

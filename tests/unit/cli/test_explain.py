"""`neox config explain`, and `schema`."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from neox_reference.explain import find_keys
from neox_reference.keys import all_keys

from neox_core.cli.main import neox
from neox_core.errors import UsageError
from neox_core.hooks.loader import load_plugins

REGISTRY = load_plugins().registry
KEYS = all_keys(REGISTRY)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(neox, ["config", *arguments])


OWNERS = "neox-gpt (architecture gpt), neox-bert (architecture bert), neox-retrieval (architecture retriever)"


def test_explain_says_all_that_is_known_of_a_key() -> None:
    text = run("explain", "hidden_size").stdout
    lines = [line.split(maxsplit=1) for line in text.splitlines()]
    assert lines[0] == ["hidden-size"]
    assert ["type", "whole number"] in lines
    assert ["default", "required"] in lines
    assert ["allowed", "greater than 0"] in lines
    assert ["unit", "elements"] in lines
    assert ["changes", "numerics"] in lines
    assert ["origin", "megatron"] in lines
    assert ["owner", OWNERS] in lines
    assert ["status", "implemented"] in lines
    assert "heads_divide_hidden: " in text.partition("rules:")[2]


def test_explain_says_of_other_owners_what_differs() -> None:
    first, *others = run("explain", "optimizer.params.lr").stdout.split("\n  neox-")
    assert "default  0.001\n" in first
    assert "neox-adam (optimizer Adam, AdamW, CPU_Adam, CPU_torch_adam)" in first
    assert "sm3 (optimizer SM3)\n    default  0.1\n" in [each.partition("  older")[0] for each in others]
    assert sum("SM3" in each for each in (first, *others)) == 1


@pytest.mark.parametrize(
    ("name", "path", "owner"),
    [
        ("optimizer.params.betas", "optimizer.params.betas", "neox-adam (optimizer Adam)"),
        ("optimizer.params.eps", "optimizer.params.eps", "neox-adam (optimizer Adam)"),
        ("zero-optimization.stage", "zero_optimization.stage", "neox-deepspeed (engine deepspeed)"),
        ("bfloat16.enabled", "bf16.enabled", "neox-deepspeed (engine deepspeed)"),
        ("rotary-pct", "rotary_pct", "neox-positions (position rotary)"),
        ("loss-scale", "loss_scale", "neox-gpt-neox (older spellings)"),
        (
            "compression-training.row_pruning.different-groups.mine.related-modules",
            "compression_training.row_pruning.different_groups.<group>.related_modules",
            "neox-compression (model change compression)",
        ),
        (
            "elasticity.prefer_larger_batch",
            "elasticity.prefer_large_batch",
            "neox-elasticity (callback elasticity)",
        ),
    ],
)
def test_explain_takes_any_spelling_at_any_depth(name: str, path: str, owner: str) -> None:
    said = json.loads(run("explain", name, "--json").stdout)
    assert said["key"] == path
    assert owner in [each["owner"] for each in said["owners"]]


def test_explain_names_older_spellings_and_inner_keys() -> None:
    assert json.loads(run("explain", "fp16.loss_scale", "--json").stdout)["older_spellings"] == ["loss_scale"]
    assert "fp16.hysteresis" in json.loads(run("explain", "fp16", "--json").stdout)["keys"]


def test_explain_knows_the_blocks_of_components() -> None:
    block = json.loads(run("explain", "rotary", "--json").stdout)
    assert "rotary.rotary_pct" in block["keys"]
    (inner, flat) = (json.loads(run("explain", key, "--json").stdout) for key in ("rotary.rotary-pct", "rotary-pct"))
    assert inner["owners"] == flat["owners"] != []


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("num-layrs", "num-layers"),
        ("betas", "optimizer.params.betas"),
        ("zero_optimization.stge", "zero_optimization.stage"),
        ("sparse_attention.blok", "sparse_attention.block"),
    ],
)
def test_an_unknown_key_has_exit_2_and_the_nearest_name(name: str, near: str) -> None:
    result = run("explain", name)
    assert result.exit_code == 2
    assert f"no key {name!r}" in result.stderr
    assert near in result.stderr.partition("did you mean")[2]


def test_a_key_of_a_package_that_is_not_installed() -> None:
    core = [key for key in KEYS if key.owner != "neox-positions"]
    with pytest.raises(UsageError, match="rotary-pct belongs to neox-positions, which is not installed") as caught:
        find_keys("rotary-pct", core)
    assert caught.value.hint == "`pip install ./plugins/neox-positions` in the repository of neox"


def test_every_key_is_found_by_each_of_its_spellings() -> None:
    for key in KEYS:
        for path in key.spellings:
            found = find_keys(path.replace("_", "-").replace("<", "").replace(">", ""), KEYS)
            assert key in found, path


def test_schema_to_the_terminal_or_a_file(tmp_path: Path) -> None:
    text = run("schema").stdout
    assert "num-layers" in json.loads(text)["properties"]
    assert run("schema", "--out", str(tmp_path / "s.json")).exit_code == 0
    assert (tmp_path / "s.json").read_text() == text

"""The JSON Schema against the public validator: what it lets pass and what it names."""

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from neox_reference.json_schema import schema
from neox_reference.keys import own_keys
from ruamel.yaml import YAML

from neox_core.config.schema.convert import block_of
from neox_core.hooks.loader import load_plugins

ROOT = Path(__file__).parents[3]
REGISTRY = load_plugins().registry
SCHEMA = schema(REGISTRY)
VALIDATOR = Draft202012Validator(SCHEMA)


def wrong(config: Any) -> list[str]:
    """Where a config is wrong; the block, for a key that is not allowed in it."""
    return [".".join(map(str, error.absolute_path)) for error in VALIDATOR.iter_errors(config)]


def test_it_is_a_schema() -> None:
    assert SCHEMA["$schema"] == Draft202012Validator.META_SCHEMA["$id"]
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("file", sorted((ROOT / "configs").rglob("*.yml")), ids=lambda path: path.stem)
def test_the_shipped_configs_pass(file: Path) -> None:
    assert wrong(YAML(typ="safe").load(file)) == []


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"num_layers": 2, "hidden-size": 64},
        {"train_micro_batch_size_per_gpu": 2},
        {"train-micro-batch_size-per-gpu": 2},
        {"zero-optimization": {"reduce_bucket_size": 5e8, "reduce-scatter": True}},
        {"optimizer": {"type": "Adam", "params": {"lr": 1e-3, "weight-decay": 0.1, "betas": [0.9, 0.95]}}},
        {"optimizer": {"type": "neox-adam:Adam", "params": {"lr": 1}}},
        {"train_batch_size": None, "min-lr": 1e-5, "split": "9,1", "monitors": ["console", "neox-monitors:jsonl"]},
        {"split": [9, 1]},
        {"data-impl": "infer"},
        {"bfloat16": {"enabled": True}},
        {"lr": 1e-3, "rms-norm": True, "adam_beta1": 0.9},
        {"zero_optimization": True},
        {"norm": "rmsnorm", "rmsnorm": {"rms-norm_epsilon": 1e-6}},
        {"pos-emb": "rotary", "rotary": {"rotary_pct": 0.25}},
    ],
    ids=str,
)
def test_what_is_right_passes(config: Any) -> None:
    assert wrong(config) == []


@pytest.mark.parametrize(
    ("config", "where"),
    [
        ({"optimizer": {"type": "Lamb", "params": {"betas": ["a", 0.9]}}}, "optimizer.params.betas.0"),
        ({"optimizer": {"type": "Lamb", "params": {"betas": [0.9, 2]}}}, "optimizer.params.betas.1"),
        ({"flops_profiler": {"output_file": ""}}, "flops_profiler.output_file"),
        ({"num-layrs": 2}, ""),
        ({"num-layers": "2"}, "num-layers"),
        ({"num_layers": 2.5}, "num_layers"),
        ({"num-layers": 0}, "num-layers"),
        ({"num-layers": 10**9}, "num-layers"),
        ({"num-layers": None}, "num-layers"),
        ({"warmup": 2000}, "warmup"),
        ({"hidden_dropout": 1.0}, "hidden_dropout"),
        ({"no-weight-tying": "false"}, "no-weight-tying"),
        ({"init-method": "glorot"}, "init-method"),
        ({"norm": "rmsnrom"}, "norm"),
        ({"monitors": ["consle"]}, "monitors.0"),
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage"),
        ({"zero-optimization": {"reduce_bucket_sise": 5}}, "zero-optimization"),
        ({"zero_optimization": 1}, "zero_optimization"),
        ({"optimizer": {"type": "Adam", "params": {"learning_rate": 1}}}, "optimizer.params"),
        ({"optimizer": {"type": "Adam", "params": {"lr": -1}}}, "optimizer.params.lr"),
        ({"optimizer": {"tipe": "Adam"}}, "optimizer"),
        ({"optimizer": {"type": "Adamm"}}, "optimizer.type"),
        ({"compression_training": {"weight_quantisation": {}}}, "compression_training"),
        ({"lr": [1]}, "lr"),
        ([], ""),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(config: Any, where: str) -> None:
    assert wrong(config) == [where]


def written(path: str, value: Any) -> Any:
    """A config that has the value at a path."""
    for part in reversed(path.split(".")):
        value = {part: value}
    return value


def test_every_default_passes_in_every_spelling() -> None:
    fields = [(key, key.field) for key in own_keys(REGISTRY) if key.field is not None and not key.field.required]
    for key, field in fields:
        value = list(field.default) if isinstance(field.default, tuple) else field.default
        for path in key.spellings:
            if isinstance(value, bool | int | float | str | list):
                assert wrong(written(path, value)) == [], path
                assert wrong(written(path.replace("_", "-"), value)) == [], path
            assert wrong(written(path, None)) == ([path] if field.info.secret else []), path


def test_an_unknown_key_is_wrong_in_every_block() -> None:
    for key in own_keys(REGISTRY):
        if key.field is not None and block_of(key.field.type) is not None and not key.field.info.each:
            assert wrong(written(f"{key.path}.no_such_key", 1)) == [key.path], key.path


def test_editors_have_a_text_and_a_default_to_show() -> None:
    layers, warmup = SCHEMA["properties"]["num-layers"], SCHEMA["properties"]["warmup"]
    assert layers["description"] == "Number of transformer blocks."
    assert warmup["default"] == 0.01
    assert SCHEMA["properties"]["rms-norm"]["deprecated"]

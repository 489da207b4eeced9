"""Names, types and defaults of the core's keys against the documents they come from."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli

from neox_core.config.convert import Field, block_of, fields_of
from neox_core.config.document import document, type_name
from neox_core.config.legacy import LEGACY_KEYS
from neox_core.config.sections import CORE_SECTIONS
from neox_core.config.unknown import known_keys

TESTS = Path(__file__).parents[2]

# documented default -> ours, and why
OURS = {
    "launcher": "the launchers of several machines are not here yet",
    "distributed_backend": "by device: a CPU has no nccl",
    "gradient_accumulation_steps": "follows from the batch sizes, else 1",
    "zero_optimization": "a block, not a switch",
}
TYPES = {"bool": "true or false", "int": "whole number", "float": "number", "str": "text", "mapping": "block"}


def all_fields() -> Iterator[tuple[str, Field]]:
    def walk(cls: type, path: str) -> Iterator[tuple[str, Field]]:
        for field in fields_of(cls):
            yield path + field.name, field
            block = block_of(field.type)
            if block:
                yield from walk(block, f"{path}{field.name}.")

    for section in CORE_SECTIONS:
        yield from walk(section.settings, "")


FIELDS = dict(all_fields())
DOCUMENTED = tomli.loads((TESTS / "data/documented_keys.toml").read_text())


@pytest.mark.parametrize("key", DOCUMENTED)
def test_documented_key(key: str) -> None:
    documented: dict[str, Any] = DOCUMENTED[key]
    field = FIELDS[key]
    if "default" in documented and key not in OURS:
        assert field.default == documented["default"]
        assert type(field.default) is type(documented["default"])
    if documented["type"] in TYPES and key != "split":
        assert type_name(field.type) == TYPES[documented["type"]]


def test_every_other_key_is_one_of_our_own() -> None:
    ours = {key for key, field in FIELDS.items() if key not in DOCUMENTED}
    assert ours == {
        "activation",
        "device",
        "gpt_j_residual",
        "init_method",
        "intermediate_size",
        "layernorm_fusion",
        "monitors",
        "on_nonfinite_loss",
        "output_layer_init_method",
        "output_layer_parallelism",
        "padded_vocab_size",
        "peak_tflops",
        "plugins",
        "plugins.require",
        "rope_fusion",
        "sample_prompt",
        "torch_autocast",
        "torch_autocast.dtype",
        "torch_autocast.enabled",
    }


@pytest.mark.parametrize("key", FIELDS)
def test_every_key_has_help(key: str) -> None:
    info = FIELDS[key].info
    assert info.help.endswith(".")
    assert info.origin in {"neox", "gpt-neox", "megatron", "deepspeed"}


def test_known_keys_are_none_of_the_cores() -> None:
    own = {spelling for section in CORE_SECTIONS for field in fields_of(section.settings) for spelling in field.keys}
    known = known_keys()
    listed = [key for group in ("packages", "areas") for keys in known[group].values() for key in keys]
    assert len(listed) == len(set(listed))
    assert not (own | set(LEGACY_KEYS)) & set(listed)
    for block, keys in known["blocks"].items():
        assert not {path for path in FIELDS if path.startswith(f"{block}.")} & {f"{block}.{key}" for key in keys}


def test_the_page_in_docs_is_fresh() -> None:
    page = TESTS.parent / "docs/configuration.md"
    assert page.read_text(encoding="utf-8") == document(), "run `neox config docs --out docs/configuration.md`"


def test_the_page_has_every_key() -> None:
    text = document()
    for key in FIELDS:
        head, dot, rest = key.partition(".")
        assert f"`{head.replace('_', '-') + dot + rest}`" in text or f"`{key}`" in text

"""Names, types and defaults of the core's keys against the documents they come from."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from neox_reference.configuration import document

from neox_core.config.schema.convert import Field, block_of, fields_of
from neox_core.config.schema.sections import CORE_SECTIONS
from neox_core.hooks.loader import load_plugins

TESTS = Path(__file__).parents[2]


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


@pytest.mark.parametrize("key", FIELDS)
def test_every_key_has_help(key: str) -> None:
    info = FIELDS[key].info
    assert info.help.endswith(".")
    assert info.origin in {"neox", "gpt-neox", "megatron", "deepspeed"}


def test_the_page_in_docs_is_fresh() -> None:
    page = TESTS.parent / "docs/configuration.md"
    fresh = document(load_plugins().registry)
    assert page.read_text(encoding="utf-8") == fresh, "run `neox config docs --out docs/configuration.md`"


def test_the_page_has_every_key() -> None:
    text = document(load_plugins().registry)
    for key in FIELDS:
        head, dot, rest = key.partition(".")
        assert f"`{head.replace('_', '-') + dot + rest}`" in text or f"`{key}`" in text

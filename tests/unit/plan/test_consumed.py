"""A key that nothing reads stops the run; one that does its work, or is switched off, does not."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from attrs import frozen

from neox_core.api import ConfigSection, hookimpl, setting
from neox_core.config.read.load import load
from neox_core.config.report import ProblemsError, spell
from neox_core.config.schema.convert import fields_of
from neox_core.config.schema.noted import noted
from neox_core.config.schema.sections import CORE_SECTIONS
from neox_core.config.schema.sections.training import BatchSection
from neox_core.config.schema.structure import Config, structure
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run


@frozen
class Pace:
    fast: bool = setting(False, help="Is read.")
    slow: int = setting(0, help="Is read by nobody.")


@frozen
class Gear:
    enabled: bool = setting(False, help="Is read.")
    teeth: int = setting(3, help="Is read by nobody.")


@frozen
class PaceSection:
    pace: Pace = setting(Pace(), help="A block.")
    gear: Gear = setting(Gear(), help="A block that can be off.")


class Unread:
    @hookimpl
    def neox_config_sections(self) -> list[ConfigSection]:
        return [ConfigSection("pace", PaceSection)]

    @hookimpl
    def neox_check_config(self, config: Any) -> list[Any]:
        section = config.section(PaceSection)
        assert section.pace.fast in (True, False)
        assert section.gear.enabled in (True, False)
        return []


def errors(tmp_path: Path, text: str, catalog: Any) -> list[str]:
    (tmp_path / "c.yml").write_text(text)
    try:
        prepare_run([tmp_path / "c.yml"], catalog=catalog, machine=Machine(0, 4))
    except ProblemsError as error:
        return [f"{problem.key}: {problem.message}" for problem in error.problems if problem.severity == "error"]
    return []


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("pace: {fast: true}\n", []),
        ("pace: {fast: true, slow: 2}\n", ["pace.slow: nothing reads it in unread unknown"]),
        ("gear: {enabled: true, teeth: 4}\n", ["gear.teeth: nothing reads it in unread unknown"]),
        ("gear: {enabled: false, teeth: 4}\n", []),
    ],
)
def test_an_unread_key_of_a_section_stops_the_run(
    tmp_path: Path, text: str, plugins: Any, everything: Any, more: str, said: list[str]
) -> None:
    assert errors(tmp_path, text + more, plugins(everything=everything, unread=Unread())) == said


def test_the_core_is_held_to_it_too(tmp_path: Path, text: str, catalog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sections = (*CORE_SECTIONS, ConfigSection("pace", PaceSection))
    monkeypatch.setattr("neox_core.config.schema.owners.CORE_SECTIONS", sections)
    assert errors(tmp_path, text + "pace: {slow: 2}\n", catalog) == ["pace.slow: nothing reads it"]


def keys_at_rest() -> Iterator[tuple[str, Any]]:
    """Every key of the core that has a default, at its default."""

    def walk(cls: type, path: str) -> Iterator[tuple[str, Any]]:
        for field in fields_of(cls):
            if field.required or field.info.secret:
                continue
            if attrs.has(type(field.default)):
                yield from walk(type(field.default), f"{path}{field.name}.")
            elif field.default not in (None, {}):
                yield f"{path}{field.name}", field.default

    for section in CORE_SECTIONS:
        yield from walk(section.settings, "")


@pytest.mark.parametrize(("key", "value"), list(keys_at_rest()), ids=lambda each: each if isinstance(each, str) else "")
def test_every_key_of_the_core_is_read_by_somebody(
    tmp_path: Path, text: str, catalog: Any, key: str, value: Any
) -> None:
    (tmp_path / "c.yml").write_text(text)
    said = []
    try:
        written = json.dumps(value)
        prepare_run([tmp_path / "c.yml"], [f"{spell(key)}={written}"], catalog=catalog, machine=Machine(0, 4))
    except ProblemsError as error:
        said = [problem.message for problem in error.problems]
    assert "nothing reads it" not in said


def test_noted_settings_are_the_settings() -> None:
    ledger: set[str] = set()
    plain = PaceSection(pace=Pace(fast=True))
    seen = noted(plain, "", ledger)
    assert isinstance(seen, PaceSection)
    assert seen.pace.fast is True
    assert [path for path in ("pace", "pace.fast", "pace.slow", "gear") if path in ledger] == ["pace", "pace.fast"]
    assert seen == plain
    assert type(attrs.evolve(seen, gear=Gear(enabled=True))) is PaceSection
    assert attrs.asdict(seen) == attrs.asdict(plain)
    assert "gear.teeth" in ledger


def test_a_config_does_not_change_when_it_is_read(tmp_path: Path, text: str, catalog: Any) -> None:
    (tmp_path / "c.yml").write_text(text)
    config, _ = structure(load([tmp_path / "c.yml"]), catalog)
    before = {each.name: repr(getattr(config, each.name)) for each in attrs.fields(Config)}
    ledger: set[str] = set()
    for reader in (config, attrs.evolve(config, ledger=ledger).seen_by("neox-pace")):
        assert reader.section(BatchSection).train_micro_batch_size_per_gpu == 4
        assert reader.value("num_layers") == 2
        assert reader.components("norm")
    assert {each.name: repr(getattr(config, each.name)) for each in attrs.fields(Config)} == before
    assert {"train_micro_batch_size_per_gpu", "num_layers"} <= ledger
    assert "train_batch_size" not in ledger

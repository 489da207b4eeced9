"""docs/hooks.md says what the code says, and nothing is missing in it."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import fields
from neox_reference import hooks as document

from neox_core.hooks import specs
from neox_core.hooks.component import Component
from neox_core.hooks.definitions import manager_of

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/hooks.md").read_text()


REGISTRY = document.first_party()


def hooks() -> set[str]:
    """The hooks as pluggy sees them."""
    manager = manager_of(REGISTRY.kinds_of_plugins())
    return {name for name in dir(manager.hook) if not name.startswith("_")}


def test_the_page_is_fresh() -> None:
    assert document.document() == PAGE, "run: python -m neox_reference.hooks > docs/hooks.md"


def test_the_generator_imports_no_contract() -> None:
    code = (
        "import sys, neox_reference.hooks as d; d.document();"
        "sys.exit(any(m.startswith(('torch', 'neox_core.contracts')) for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_hook_has_a_section_and_a_docstring() -> None:
    assert hooks()
    for name in hooks():
        assert f"\n## {name}\n" in PAGE
    assert all(inspect.getdoc(getattr(specs, name)) for name in document.other_hooks())
    assert all(document.help_of(kind) or document.contracts_of(kind) for kind in REGISTRY.kinds.values())


def test_every_hook_belongs_to_a_kind_and_every_kind_to_a_hook() -> None:
    of_kinds = [kind.hook for kind in REGISTRY.kinds.values()]
    assert len(set(of_kinds)) == len(of_kinds)
    assert set(of_kinds) == hooks() - {
        "neox_kinds",
        "neox_config_sections",
        "neox_older_spellings",
        "neox_check_config",
        "neox_check_plan",
        "neox_train",
    }
    for kind in REGISTRY.kinds.values():
        assert f"| {kind.name} | [`{kind.hook}`]" in PAGE


@pytest.mark.parametrize("file", sorted((ROOT / "neox_core/contracts").glob("*.py")), ids=lambda path: path.stem)
def test_every_contract_is_in_the_page_with_its_words(file: Path) -> None:
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ClassDef):
            assert f"`{node.name}`:\n\n{ast.get_docstring(node)}\n" in PAGE


def test_what_hooks_and_contracts_speak_of_is_in_the_page_and_once() -> None:
    """Else an author has to read the code: of a rule's config, a launcher's plan, what a corpus returns."""
    shown = re.findall(r"^(?:Contract|With) `(\w+)`:$", PAGE, re.MULTILINE)
    assert len(set(shown)) == len(shown)
    assert {*document.ELSEWHERE} - {"Component"} <= set(shown)
    for field in fields(Component):
        assert re.search(rf"^{field.alias}: ", PAGE, re.MULTILINE)
    assert "def value(self, key: str) -> Any" in PAGE
    assert "def world_size(self) -> int" in PAGE

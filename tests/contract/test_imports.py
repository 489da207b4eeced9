"""What plugins import of the core and of each other: the table in docs/plugins.md is an allow list."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli

from neox_core.hooks.loader import load_plugins

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))
ANY = "any other module"
KINDS: dict[str, set[str]] = {}
for entry in load_plugins().registry.entries():
    KINDS.setdefault(entry.plugin.id, set()).add(entry.kind)


def documented() -> dict[str, set[str]]:
    """Who may import -> the modules, from the table."""
    text = (ROOT / "docs/plugins.md").read_text("utf-8").partition("## What a plugin may import\n")[2]
    rows = re.findall(r"^\| ((?:any|a|an) [^|]*) \| (`[^|]*) \|$", text.partition("\n## ")[0], re.MULTILINE)
    return {who: set(re.findall(r"`([\w.]+)`", modules)) for who, modules in rows}


DOCUMENTED = documented()


def imports_of_the_core(plugin: Path) -> Iterator[tuple[Path, str]]:
    """(file, module without `neox_core.`) of every import, also in functions and for type checkers."""
    for file in plugin.glob(f"{plugin.name.replace('-', '_')}/**/*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                within = node.module in ("neox_core", "neox_core.plan", "neox_core.config", "neox_core.hooks")
                names = [f"{node.module}.{each.name}" for each in node.names] if within else [node.module]
            elif isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            yield from ((file, name.partition(".")[2]) for name in names if name.partition(".")[0] == "neox_core")


def allowing(kinds: set[str]) -> set[str]:
    """The rows of the table that a plugin with components of these kinds may use."""
    return {who for who in DOCUMENTED if who == ANY or any(re.search(rf"\b{kind}\b", who) for kind in kinds)}


def is_within(module: str, listed: set[str]) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in listed)


def test_the_table_has_a_row_for_each_kind_that_needs_more() -> None:
    assert next(iter(DOCUMENTED)) == ANY
    assert {"api", "contracts", "errors", "parallel", "testing"} <= DOCUMENTED[ANY]
    assert "data" not in DOCUMENTED[ANY]


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda path: path.name)
def test_a_plugin_imports_what_is_documented(plugin: Path) -> None:
    listed = set().union(*(DOCUMENTED[who] for who in allowing(KINDS.get(plugin.name, {"rule"}))))
    beyond = {f"{file.name}: {name}" for file, name in imports_of_the_core(plugin) if not is_within(name, listed)}
    assert not beyond


@pytest.mark.parametrize("who", [who for who in DOCUMENTED if who != ANY])
def test_no_row_lists_a_module_that_no_plugin_needs(who: str) -> None:
    users = [plugin for plugin in PLUGINS if who in allowing(KINDS.get(plugin.name, {"rule"}))]
    used = {name for plugin in users for _, name in imports_of_the_core(plugin)}
    assert {each for each in DOCUMENTED[who] if not any(is_within(name, {each}) for name in used)} == set()


def test_import_linter_looks_at_every_plugin() -> None:
    config = tomli.loads((ROOT / "plugins/imports.toml").read_text("utf-8"))["tool"]["importlinter"]
    names = {path.name.replace("-", "_") for path in PLUGINS}
    assert set(config["root_packages"]) == {"neox_core", *names}
    assert set(config["contracts"][0]["layers"][0].split(" | ")) == names


def test_a_checkout_adds_no_folder_to_those_that_imports_search() -> None:
    """Each would be searched by every command: its packages are links in site-packages."""
    command = [sys.executable, "-Ic", "import sys; print(*sys.path, sep='\\n')"]
    searched = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert not {str(folder) for folder in (ROOT, *PLUGINS)} & set(searched)

"""The core names no plugin and no component of one: whatever has a name in a config comes through the door."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from neox_core.hooks.loader import load_plugins

ROOT = Path(__file__).resolve().parents[2]
CORE = sorted((ROOT / "neox_core").rglob("*.py"))
PLUGINS = {path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml")}
PACKAGES = {name.replace("-", "_") for name in PLUGINS}
WORDS = {"checkpoint", "data", "file", "kernels", "neox", "none", "report", "runs", "samples", "text"}
"""Names of components that are words of English or of configs too."""
NAMES = {
    entry.component.name
    for entry in load_plugins().registry.entries()
    if entry.plugin.id in PLUGINS and entry.definition.used
} - WORDS
SETTING = {"setting", "_speed", "_split"}
"""What makes a key: a default may name the component that a config without it has."""
KNOWN = {
    "cli/process.py": {"plan"},  # an argument of a child
    "hooks/guard.py": {"deepspeed"},  # the library, which is heavy
    "run/optimizer.py": {"eval"},  # a method of an optimizer with modes
    "plan/stored/earlier.py": {  # what every run had before there was a choice
        *("causal-lm", "deepspeed", "gpt"),
        *("neox-causal-lm", "neox-deepspeed", "neox-gpt"),
        *("neox-lr", "constant", "cosine", "exponential", "linear"),  # that have a setting now, and had none
    },
    "plan/rules/components.py": {"deepspeed"},  # the library, which a host need not have
    "plan/rules/schedule.py": {"linear"},  # the default of lr-decay-style
}
"""What the core has to say all the same, and why."""


LIBRARIES = re.compile(r"DS_[A-Z]+|deepspeed\.\w|DeepSpeed engine")
"""What only the plugin that imports a library knows of it: its switches in the environment and its modules."""


def literals(tree: ast.AST) -> Iterator[str]:
    """Texts of a module that are no docstrings, no defaults and no origins of settings."""
    spared: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            spared.add(id(node.value))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in SETTING:
            spared |= {id(inner) for default in node.args[:1] for inner in ast.walk(default)}
            spared |= {id(each.value) for each in node.keywords if each.arg == "origin"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in spared:
            yield node.value


def named(text: str) -> set[str]:
    """The names of components and plugins that a text is, or is an import path of."""
    return {text} & (NAMES | PLUGINS) | {text.partition(":")[0].partition(".")[0]} & PACKAGES & {
        text.partition(".")[0] if "." in text else ""
    }


@pytest.mark.parametrize("file", CORE, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_of_the_core_names_no_plugin_and_no_component(file: Path) -> None:
    found = {name for text in literals(ast.parse(file.read_text(encoding="utf-8"))) for name in named(text)}
    assert found == KNOWN.get(str(file.relative_to(ROOT / "neox_core")), set())


@pytest.mark.parametrize("file", CORE, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_of_the_core_sets_nothing_for_a_library_of_a_plugin(file: Path) -> None:
    assert not [text for text in literals(ast.parse(file.read_text(encoding="utf-8"))) if LIBRARIES.search(text)]


def test_a_name_is_found() -> None:
    assert len(NAMES) > 60
    text = "'Lion'\nx = ['Lion', f('neox-lion'), 'neox_lamb.optim:Lamb', setting('Lamb', origin='deepspeed')]"
    tree = ast.parse(text)
    assert set().union(*map(named, literals(tree))) == {"Lion", "neox-lion", "neox_lamb"}

"""The surface that plugins are written against is frozen: `api`, `contracts` and `testing` of the core, the kit and the
decoder.

`python tests/contract/test_surface.py` writes surface.txt again after a change that is meant. Its first line is the
digest of the section of CHANGELOG.md that tells of such changes, so neither changes without the other.
"""

import ast
import hashlib
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FROZEN = Path(__file__).with_name("surface.txt")
MODULES = ("neox_core.api", "neox_core.contracts", "neox_author.testing", "neox_gpt.api", "neox_gpt.testing")
SECTION = "### The plugin API"
HOW = "tell authors of it under 'The plugin API' in CHANGELOG.md, then run `python tests/contract/test_surface.py`"


def surface() -> Iterator[str]:
    """A line for each name that a plugin may use, with its signature; below a class, its own fields and methods."""
    for name in MODULES:
        for public in public_names(name):
            yield from described(f"{name}.{public}", definition(name, public))


def public_names(module: str) -> list[str]:
    """What a module lists, or imports under its own name."""
    found = import_module(module)
    if hasattr(found, "__all__"):
        return sorted(found.__all__)
    nodes = ast.walk(ast.parse(Path(str(found.__file__)).read_text("utf-8")))  # also those that are imported when used
    aliases = (alias for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names)
    return sorted(alias.name for alias in aliases if alias.asname == alias.name)


def definition(module: str, name: str) -> ast.stmt | None:
    """Where a public name is defined, read from its source: a check of the kit cannot be imported without torch."""
    known = vars(import_module(module))
    homes = known.get("_HOME", known.get("_CHECKS", {}))
    if name in homes:
        home = f"{module}.{homes[name]}"
    elif name in known:
        home = getattr(known[name], "__module__", module)
    else:
        home = imported_from(known["__file__"], name)
    spec = find_spec(home)
    assert spec is not None
    assert spec.origin is not None
    body = ast.parse(Path(spec.origin).read_text("utf-8")).body
    return next((each for each in body if getattr(each, "name", None) == name), None)


def imported_from(file: str, name: str) -> str:
    """Where a module would import a name from when it is asked for it, as it tells type checkers."""
    imports = (node for node in ast.walk(ast.parse(Path(file).read_text("utf-8"))) if isinstance(node, ast.ImportFrom))
    return next(str(node.module) for node in imports if any(alias.name == name for alias in node.names))


def described(name: str, node: ast.stmt | None) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef):
        yield f"{name}{signature_of(node)}"
    elif isinstance(node, ast.ClassDef):
        yield f"class {name}({', '.join(map(ast.unparse, node.bases))})"
        for each in node.body:
            if isinstance(each, ast.AnnAssign):
                yield f"  {ast.unparse(each.target)}: {ast.unparse(each.annotation)}{default_of(each)}"
            elif isinstance(each, ast.FunctionDef) and (each.name[0] != "_" or each.name == "__call__"):
                marks = [ast.unparse(mark) for mark in each.decorator_list]
                yield f"  {''.join(f'@{mark} ' for mark in marks)}{each.name}{signature_of(each)}"
    else:
        yield name


def default_of(field: ast.AnnAssign) -> str:
    """That a field need not be given."""
    value = field.value
    made = isinstance(value, ast.Call) and not any(each.arg in ("default", "factory") for each in value.keywords)
    return "" if value is None or (made and ast.unparse(value).startswith("field(")) else " = ..."


def signature_of(function: ast.FunctionDef) -> str:
    returns = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    return f"({ast.unparse(function.args)}){returns}"


def told() -> str:
    """The section of CHANGELOG.md that is for authors of plugins."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8").partition(f"\n{SECTION}\n")[2]
    return re.split(r"^##", text, maxsplit=1, flags=re.MULTILINE)[0]


def frozen() -> str:
    digest = hashlib.sha256(told().encode()).hexdigest()[:16]
    return "\n".join([f"told in CHANGELOG.md: {digest}", *surface(), ""])


def test_every_change_of_the_surface_is_told() -> None:
    now, then = frozen().splitlines(), FROZEN.read_text("utf-8").splitlines()
    changed = [f"- {line}" for line in then[1:] if line not in now] + [
        f"+ {line}" for line in now[1:] if line not in then
    ]
    assert told().strip(), f"CHANGELOG.md has no section {SECTION!r}"
    assert not (changed and now[0] == then[0]), "\n".join([f"not told: {HOW}", *changed])
    assert now == then, "\n".join([f"surface.txt is not fresh: {HOW}", *changed])


@pytest.mark.parametrize("module", MODULES)
def test_it_names_every_public_name(module: str) -> None:
    lines = FROZEN.read_text("utf-8")
    assert public_names(module)
    for name in public_names(module):
        assert re.search(rf"^(class )?{re.escape(module)}\.{name}\b", lines, re.MULTILINE), name


if __name__ == "__main__":
    FROZEN.write_text(frozen(), "utf-8")

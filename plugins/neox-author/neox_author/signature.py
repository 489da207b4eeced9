"""The call signature of a function, from its source text."""

import ast
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from attrs import frozen


@frozen
class Signature:
    """The call signature of a reference, from its source text. call: `name(arguments) -> result`."""

    call: str
    help: str


def signature_of(path: str) -> Signature | None:
    """The signature of an import path, whose module is read but not imported; None where its source is not found."""
    module, _, attribute = path.partition(":")
    try:
        file = file_of(module)
        tree = ast.parse(file.read_text(encoding="utf-8")) if file is not None else None
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None
    node = _defined(tree.body, attribute.split(".")) if tree is not None else None
    if node is None:
        return None
    returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return Signature(f"{node.name}({ast.unparse(node.args)}){returned}", ast.get_docstring(node) or "")


def file_of(module: str) -> Path | None:
    """The source of a module, without importing the packages around it."""
    package, *inner = module.split(".")
    spec = find_spec(package)
    if spec is None or not inner:
        return Path(spec.origin) if spec is not None and spec.origin else None
    for folder in spec.submodule_search_locations or ():
        place = Path(folder, *inner)
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                return file
    return None


def _defined(body: Sequence[ast.stmt], names: Sequence[str]) -> ast.FunctionDef | None:
    """The function of that name, or the method of a class."""
    for node in body:
        if isinstance(node, ast.FunctionDef) and [node.name] == list(names):
            return node
        if isinstance(node, ast.ClassDef) and len(names) > 1 and node.name == names[0]:
            return _defined(node.body, names[1:])
    return None

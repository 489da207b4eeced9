"""Every public function and method of the core and the plugins says in a docstring what it does."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted([*ROOT.glob("neox_core/**/*.py"), *ROOT.glob("plugins/*/neox_*/**/*.py")])
TREES = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text("utf-8")) for path in SOURCES}
DESCRIBED_ELSEWHERE = re.compile(r"hookimpl|overload|\.setter$|^triton\.jit$")
"""Decorators: of a hook, which its specification describes; of variants of one function; of a kernel, whose committed
measurements have the digest of its text.
"""


def speaks_for(cls: ast.ClassDef, method: str) -> bool:
    """Whether the docstring of a class describes a method, as `name: ...` among its fields or as `name(...)`."""
    return bool(re.search(rf"`{method}\(|\b{method}(, \w+)*:", ast.get_docstring(cls) or ""))


def name_of(base: ast.expr) -> str:
    return re.sub(r"\[.*", "", ast.unparse(base)).rpartition(".")[2]


def methods(cls: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    return (each for each in cls.body if isinstance(each, ast.FunctionDef))


@cache
def inherited() -> set[str]:
    """Names of the methods that a contract, or another class with subclasses, describes for its implementations."""
    classes = [node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases = {name_of(base) for cls in classes for base in cls.bases}
    above = (cls for cls in classes if cls.name in bases or "Protocol" in map(name_of, cls.bases))
    return {
        each.name for cls in above for each in methods(cls) if ast.get_docstring(each) or speaks_for(cls, each.name)
    }


def undescribed(tree: ast.Module) -> Iterator[str]:
    for function in (each for each in tree.body if isinstance(each, ast.FunctionDef)):
        if is_bare(function):
            yield function.name
    for cls in (each for each in tree.body if isinstance(each, ast.ClassDef) and each.name[0] != "_"):
        for method in methods(cls):
            if is_bare(method) and method.name not in inherited() and not speaks_for(cls, method.name):
                yield f"{cls.name}.{method.name}"


def is_bare(function: ast.FunctionDef) -> bool:
    marks = map(ast.unparse, function.decorator_list)
    return not (function.name[0] == "_" or ast.get_docstring(function) or any(map(DESCRIBED_ELSEWHERE.search, marks)))


def test_every_public_function_has_a_docstring() -> None:
    found = [f"{file}: {name}" for file, tree in TREES.items() for name in undescribed(tree)]
    assert not found, "\n".join(["say what each of these does, in one line:", *found])


def test_it_finds_one_without() -> None:
    """Of a function, a method, and a property; not of those that another class or a hook speaks for."""
    text = """
def bare(): return 1
@hookimpl
def neox_commands(): return []
class Row:
    '''width: in tokens; `cut(at)` shortens it.'''
    def cut(self, at): return at
    @property
    def width(self): return 2
    @property
    def height(self): return 3
    def train_step(self, batches, lr): return 4
    def train_steps(self, batches, lr): return 5
"""
    assert list(undescribed(ast.parse(text))) == ["bare", "Row.height", "Row.train_steps"]

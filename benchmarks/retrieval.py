"""Documents for docs/retrieval.md, and the comparison with BM25 that it shows.

python benchmarks/retrieval.py documents docs.jsonl
python benchmarks/retrieval.py compare --load runs/retriever --blocks blocks
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

LEAST, MOST = 160, 4000
"""Characters of a document."""
PACKAGES = ("torch", "numpy", "transformers", "deepspeed")
"""That are installed with neox; beside them the standard library is read."""


def documents() -> Iterator[tuple[str, str]]:
    """(dotted name, docstring without examples) of modules, classes and functions, in an order that mixes packages."""
    library = Path(sysconfig.get_path("stdlib"))
    files = [(library, each) for each in library.rglob("*.py") if not {"site-packages", "test"} & {*each.parts}]
    for name in PACKAGES:
        found = find_spec(name)
        for folder in (found and found.submodule_search_locations) or ():
            files += [(Path(folder).parent, each) for each in Path(folder).rglob("*.py") if "tests" not in each.parts]
    seen: set[str] = set()
    for root, file in sorted(
        files, key=lambda pair: hashlib.sha256(str(pair[1].relative_to(pair[0])).encode()).digest()
    ):
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        module = ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        for name, text in _docstrings(tree, module):
            plain = _plain(text)
            if len(plain) >= LEAST and plain not in seen:
                seen.add(plain)
                yield name, plain[:MOST]


def _docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        text = ast.get_docstring(node)
        if text:
            yield name, text
    for child in ast.iter_child_nodes(node):
        own = getattr(child, "name", None)
        yield from _docstrings(child, f"{name}.{own}" if isinstance(own, str) else name)


def _plain(text: str) -> str:
    """Paragraphs of words: without examples, rules and the marks of reStructuredText."""
    kept = []
    for paragraph in re.split(r"\n\s*\n", text):
        if ">>>" in paragraph or "::" in paragraph:
            continue
        words = re.sub(r"[`*_=~^-]{2,}|`", " ", re.sub(r":[a-z]+:`([^`]*)`", r"\1", paragraph))
        kept.append(re.sub(r"\s+", " ", words).strip())
    return "\n".join(each for each in kept if each)


def write_documents(out: Path, most: int) -> None:
    with out.open("w", encoding="utf-8") as file:
        for number, (title, text) in enumerate(documents()):
            if number == most:
                return
            file.write(json.dumps({"title": title, "text": text}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    given = commands.add_parser("documents")
    given.add_argument("out", type=Path)
    given.add_argument("--most", type=int, default=12_000)
    chosen = parser.parse_args()
    write_documents(chosen.out, chosen.most)


if __name__ == "__main__":
    main()

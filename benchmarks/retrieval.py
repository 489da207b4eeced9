"""Documents for docs/retrieval.md, and all of its recipe in one command, with the tables that it shows.

    .venv/bin/python benchmarks/retrieval.py documents docs.jsonl
    .venv/bin/python benchmarks/retrieval.py recipe FOLDER

`recipe` runs the commands of the page in FOLDER, continues there where it was stopped, and appends rows to
benchmarks/results.csv: the seconds of each command, losses beside those of token frequencies, accuracies in a batch and
among all blocks, beside BM25's and chance.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from neox_bert.api import sentences_of
from results import append_row

from neox_core.data.sources import Datasets
from neox_core.plan.resolve import prepare_run

CONFIGS = Path(__file__).parents[1] / "configs/retrieval"
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
    files.sort(key=lambda pair: hashlib.sha256(str(pair[1].relative_to(pair[0])).encode()).digest())
    seen: set[str] = set()
    with ProcessPoolExecutor() as pool:
        for name, plain in chain.from_iterable(pool.map(_documents_of, *zip(*files, strict=True), chunksize=16)):
            if len(plain) >= LEAST and plain not in seen:
                seen.add(plain)
                yield name, plain[:MOST]


def _documents_of(root: Path, file: Path) -> list[tuple[str, str]]:
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return []
    module = ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    return [(name, _plain(text)) for name, text in _docstrings(tree, module)]


def _docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        text = ast.get_docstring(node)
        if text:
            yield name, text
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.ExceptHandler):  # an expression holds no definition
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


def recipe(folder: Path) -> None:
    """Run the commands of docs/retrieval.md in `folder`, and write what they reach."""
    folder.mkdir(parents=True, exist_ok=True)
    bert, retriever = (str(CONFIGS / name) for name in ("bert.yml", "retriever.yml"))
    if not (folder / "data/vocab.txt").exists():
        _timed(folder, "documents", __file__, "documents", "docs.jsonl")
        kind = ("--tokenizer-type", "BertWordPieceLowerCase", "--vocab-size", "6000", "--split-sentences")
        _timed(folder, "prepare", "-m", "neox_core", "data", "prepare", "docs.jsonl", "--out", "data", *kind,
               "--json-keys", "text,title")  # fmt: skip
    _timed(folder, "BERT", "-m", "neox_core", "train", bert)
    _timed(folder, "retriever", "-m", "neox_core", "train", retriever)
    _timed(folder, "index", "-m", "neox_core", "retrieval", "index", retriever)
    append_row("retrieval", "loss of token frequencies, validation", "nats", [unigram_loss(folder)])
    append_row("retrieval", "loss of masked tokens, validation", "nats", [_last(folder / "runs/bert")["valid_loss"]])
    reached = _last(folder / "runs/retriever")
    for k in (1, 5):
        case = f"block of a sentence among the first {k} of a micro-batch, validation"
        append_row("retrieval", case, "%", [100 * reached[f"valid_objective_top{k}_acc"]])
    evaluate = ("-m", "neox_core", "retrieval", "evaluate", "--held-out", "200", "--bm25", "--load", "runs/retriever")
    for name, more in (("left in", ()), ("cut out", ("--without",))):
        for line in _timed(folder, f"evaluate, {name}", *evaluate, *more).splitlines():
            cells = [each.strip() for each in line.strip().strip("|").split("|")]
            if len(cells) == 4 and cells[0].isdigit():
                for who, share in zip(("retriever", "BM25", "chance"), cells[1:], strict=True):
                    case = f"held-out sentences {name}, first {cells[0]}: {who}"
                    append_row("retrieval", case, "%", [float(share.strip("% "))])


def _timed(folder: Path, name: str, *words: str) -> str:
    """Run python with `words`, print what it says, and write how long it took."""
    start, said = time.monotonic(), []
    with subprocess.Popen([sys.executable, *words], cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            said.append(line)
    if process.returncode:
        raise SystemExit(process.returncode)
    append_row("retrieval", f"seconds of {name}", "s", [time.monotonic() - start])
    return "".join(said)


def unigram_loss(folder: Path) -> float:
    """Nats of a token of the validation's documents, where each is as likely as it is frequent in those trained on."""
    back = Path.cwd()
    os.chdir(folder)  # the paths of the config are beside it
    try:
        plan = prepare_run([CONFIGS / "bert.yml"], (), start=False, folder=folder).plan
        datasets, counts = Datasets(plan.data), []
        for split in ("train", "valid"):
            part: Any = sentences_of(plan, split, datasets)  # type: ignore[arg-type]  # a name of the contract
            ids = part.read(int(part.first[0]), int(part.first[-1]), 1 << 16)
            counts.append(np.bincount(ids, minlength=6000))
    finally:
        os.chdir(back)
    trained, asked = counts
    return float(-(asked * np.log((trained + 1) / (trained + 1).sum())).sum() / asked.sum())


def _last(run: Path) -> dict[str, Any]:
    """The newest value of each number of a run."""
    found: dict[str, Any] = {}
    for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        found |= json.loads(line)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    given = commands.add_parser("documents")
    given.add_argument("out", type=Path)
    given.add_argument("--most", type=int, default=12_000)
    commands.add_parser("recipe").add_argument("folder", type=Path)
    chosen = parser.parse_args()
    if chosen.command == "recipe":
        recipe(chosen.folder.resolve())
    else:
        write_documents(chosen.out, chosen.most)


if __name__ == "__main__":
    main()

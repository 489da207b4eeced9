"""The paths and names of modules that the documents of the architecture state are there."""

import re
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("*/**/*.*") if "__pycache__" not in path.parts}
FOLDERS = {parent.as_posix() for file in FILES for parent in PurePosixPath(file).parents}
PAGES = ["README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/plugins.md", "docs/first-run.md"]
PAGES += sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs/adr").glob("*.md"))
GONE = {
    "docs/adr/0014-rooms-of-the-core.md": {  # what moved, and from where
        "neox_core.train.rank", "neox_core.build.corpus", "neox_core.build.native", "neox_core.config.structure"
    },
    "docs/plugins.md": {"tests/test_lion.py"},  # of the example
}  # fmt: skip
"""Page -> what it states of the past, or of another repository."""


def is_there(stated: str) -> bool:
    """Whether a path, or a dotted name, is that of a file, a folder, or something that a module has."""
    if "/" in stated:
        package = stated.partition("/")[0].replace("_", "-")
        return not {stated.rstrip("/"), f"plugins/{package}/{stated.rstrip('/')}"}.isdisjoint(FILES | FOLDERS)
    head, *rest = stated.split(".")
    base = PurePosixPath("" if head == "neox_core" else f"plugins/{head.replace('_', '-')}", head)
    while rest and ((base / rest[0]).as_posix() in FOLDERS or f"{base / rest[0]}.py" in FILES):
        base /= rest.pop(0)
    source = next((file for file in (f"{base}.py", f"{base}/__init__.py") if file in FILES), "")
    return not rest or (bool(source) and re.search(rf"\b{rest[0]}\b", (ROOT / source).read_text("utf-8")) is not None)


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page: str) -> None:
    words = re.findall(r"`([^`\n]+)`", (ROOT / page).read_text("utf-8"))
    stated = {
        word
        for word in words
        if re.fullmatch(r"(neox_\w+|tests|plugins|docs|benchmarks|requirements|configs)/[\w./-]+", word)
        or re.fullmatch(r"neox_[a-z_]+(\.\w+)+", word)
    }
    assert {word for word in stated - GONE.get(page, set()) if not is_there(word)} == set()


@pytest.mark.parametrize("page", ["mixer", "feed-forward"])
def test_the_number_of_lines_of_an_example_is_what_its_page_says(page: str) -> None:
    text = (ROOT / f"docs/plugins/{page}.md").read_text("utf-8")
    found = re.findall(r"^`\w+/(\w+)\.py`[^\n]*:\n\n```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = {name: sum(1 for line in source.splitlines() if line.strip()) for name, source in found}
    (own, listing) = re.search(r"and its plan are (\d+) lines, blank ones aside, and (\d+) list it\.", text).groups()  # type: ignore[union-attr]  # or it fails
    assert (lines["layer"] + lines["size"], lines["plugin"]) == (int(own), int(listing))

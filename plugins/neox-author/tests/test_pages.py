"""The pages of kinds show what `neox plugins new` writes, which passes its own tests."""

import re
from pathlib import Path

import pytest
from neox_author.new import kind_of, write_plugin

from neox_core.hooks.loader import load_plugins

PAGES = Path(__file__).resolve().parents[3] / "docs/plugins"
FILE = re.compile(r"^`([\w./]+)`[^\n]*:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


SHOWN = {
    "architecture": "neox-means",
    "engine": "neox-timed",
    "kernel": "neox-exponential",
    "dialect": "neox-other",
    "model-family": "neox-plainly",
}


@pytest.mark.parametrize(("kind", "name"), SHOWN.items())
def test_a_page_shows_what_new_writes(kind: str, name: str, tmp_path: Path) -> None:
    catalog = load_plugins()
    folder, files = write_plugin(catalog, kind_of(catalog, kind), name, tmp_path)
    package = name.replace("-", "_")
    written = {each: (folder / each).read_text("utf-8") for each in files if each.startswith(f"{package}/")}
    shown = dict(FILE.findall((PAGES / f"{kind}.md").read_text("utf-8")))
    shown = {path: text for path, text in shown.items() if not path.startswith("tests/")}
    assert shown == {path: text for path, text in written.items() if text}

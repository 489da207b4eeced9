"""The site has a page for each command and each area of keys, and every link within it leads to a page."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli
from neox_reference.site import write_site

from neox_core.hooks.loader import load_plugins

LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s#]+)(?:#[\w-]+)?\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    write_site(folder)
    return folder


def pages_in(nav: object) -> Iterator[str]:
    for entry in nav if isinstance(nav, list) else ():
        for value in entry.values():
            yield from [value] if isinstance(value, str) else pages_in(value)


def test_every_command_has_a_page(site: Path) -> None:
    pages = {page.stem for page in (site / "pages/docs/commands").glob("*.md")}
    offered = {entry.component.name.replace(".", "-") for entry in load_plugins().registry.entries("command")}
    assert offered | {"neox", "train", "config-check", "plugins-list"} <= pages
    text = (site / "pages/docs/commands/data-prepare.md").read_text("utf-8")
    assert text.startswith("# neox data prepare\n\n```text\nUsage: neox data prepare ")


def test_every_kind_has_a_page(site: Path) -> None:
    pages = {page.stem for page in (site / "pages/docs/plugins").glob("*.md")}
    kinds = {name.replace(" ", "-") for name in load_plugins().registry.kinds}
    assert kinds - pages == {"scheduler"}, "which is in lr-schedule.md"


def test_every_area_of_keys_has_a_page(site: Path) -> None:
    areas = re.findall(r"^## (.*)$", (ROOT / "docs/configuration.md").read_text("utf-8"), re.MULTILINE)
    titles = {page.read_text("utf-8").partition("\n")[0] for page in (site / "pages/docs/configuration").glob("*.md")}
    assert titles == {f"# {area}" for area in areas}


def test_the_contents_name_every_page_of_the_project(site: Path) -> None:
    contents = tomli.loads((site / "zensical.toml").read_text("utf-8"))["project"]["nav"]
    listed = set(pages_in(contents))
    pages = {page.relative_to(site / "pages").as_posix() for page in (site / "pages").rglob("*.md")}
    assert listed <= pages
    assert pages - listed == {"docs/index.md", "README.md", "CONTRIBUTING.md"}


def test_every_link_leads_to_a_page(site: Path) -> None:
    for page in (site / "pages").rglob("*.md"):
        for to in LINK.findall(CODE.sub("", page.read_text("utf-8"))):
            target = page.parent / to
            if target.suffix == ".md":
                assert target.is_file(), f"{page.relative_to(site / 'pages')}: {to}"


def test_it_is_written_without_heavy_libraries(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules |= dict.fromkeys(('torch', 'deepspeed', 'numpy', 'triton'));"
        "from pathlib import Path; from neox_reference.site import write_site; write_site(Path(sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

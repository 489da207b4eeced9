"""`python -m neox_reference.site FOLDER`: the documentation as a project that zensical builds into a site.

FOLDER/pages gets the Markdown of the repository in the same places, so that links hold, and what is written from the
code: a page for each command, and the reference of keys with a page for each area.
"""

import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from neox_core.cli.main import neox

ROOT = Path(__file__).resolve().parents[3]
GUIDES = {
    "Start": ("first-run", "migrating", "robustness"),
    "Train": (
        "data",
        "parallelism",
        "zero",
        "optimizers",
        "kernels",
        "sparse-attention",
        "compression",
        "retrieval",
        "monitors",
        "report",
        "python",
        "checkpoints",
    ),
    "Inside": ("architecture", "numerics", "benchmarks"),
}
LINK = re.compile(r"\]\((?P<to>[^)#\s]*configuration\.md)?#(?P<anchor>[\w-]+)\)")
"""A link to a heading of the page of keys, or within a page."""
RELATIVE = re.compile(r"\]\((?!https?:|#)")
"""Where a link to another page begins."""

Nav = list[dict[str, Any]]


def write_site(folder: Path, root: Path = ROOT) -> None:
    """Write the project. folder: empty, or not there yet. root: of the repository."""
    pages = folder / "pages"
    tops = [root / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    for page in [*root.glob("docs/**/*.md"), *root.glob("plugins/*/README.md"), *tops]:
        _write(pages / page.relative_to(root), page.read_text("utf-8"))
    for picture in root.glob("docs/*.png"):
        shutil.copy(picture, pages / "docs")
    home = (root / "docs/index.md").read_text("utf-8")
    _write(pages / "index.md", RELATIVE.sub("](docs/", home).replace("](docs/../", "]("))
    areas = write_areas(pages)
    commands = [{name: str(page.relative_to(pages))} for name, page in write_commands(pages / "docs/commands")]
    nav: Nav = [{"Home": "index.md"}]
    nav += [{title: [_entry(pages, f"docs/{name}.md") for name in names]} for title, names in GUIDES.items()]
    nav += [{"Keys": areas}, {"Commands": commands}]
    kinds = sorted(page.relative_to(pages).as_posix() for page in pages.glob("docs/plugins/*.md"))
    nav.append({"Plugins": [_entry(pages, each) for each in ("docs/plugins.md", *kinds, "docs/hooks.md")]})
    installed = sorted(page.relative_to(pages).as_posix() for page in pages.glob("plugins/*/README.md"))
    nav.append({"Packages": [_entry(pages, each) for each in installed]})
    nav.append({"Decisions": [_entry(pages, f"docs/adr/{page.name}") for page in sorted(pages.glob("docs/adr/*.md"))]})
    nav.append({"Changes": "CHANGELOG.md"})
    options = {"site_name": "neox", "docs_dir": "pages", "site_dir": "site", "nav": nav}
    lines = [f"{name} = {_toml(value)}" for name, value in options.items()]
    theme = '[project.theme]\nfeatures = ["navigation.indexes", "search.highlight", "content.code.copy"]'
    _write(folder / "zensical.toml", "\n".join(["[project]", *lines, "", theme, ""]))


def write_areas(pages: Path) -> Nav:
    """The reference of keys with a page for each of its headings; links to these lead to the pages."""
    whole = pages / "docs/configuration.md"
    head, *areas = re.split(r"^(?=## )", whole.read_text("utf-8"), flags=re.MULTILINE)
    names = {_slug(area): area for area in areas}
    where = {anchor: name for name, area in names.items() for anchor in _anchors(area)}
    nav: Nav = [{"All areas": "docs/configuration.md"}]
    for name, area in names.items():
        text = re.sub(r"^#(#+) ", r"\1 ", area, flags=re.MULTILINE)
        _write(
            pages / f"docs/configuration/{name}.md",
            text.replace("](", "](../").replace("](../#", "](#").replace("](../http", "](http"),
        )
        nav.append({area.partition("\n")[0].removeprefix("## "): f"docs/configuration/{name}.md"})
    listed = (f"* [{title}](configuration/{Path(page).name})" for each in nav[1:] for title, page in each.items())
    _write(whole, "\n".join([head.rstrip(), "", *listed, ""]))
    for page in pages.rglob("*.md"):
        _write(page, LINK.sub(partial(_led, page=page, whole=whole, where=where), page.read_text("utf-8")))
    return nav


def _led(found: re.Match[str], *, page: Path, whole: Path, where: dict[str, str]) -> str:
    """A link to a heading of the reference as one to the heading's page."""
    to, anchor = found["to"], found["anchor"]
    of_keys = page == whole or page.parent.name == "configuration"
    if anchor not in where or not (to or of_keys):
        return found[0]
    up = "../" * (len(page.relative_to(whole.parents[1]).parts) - 1)
    return f"]({up}docs/configuration/{where[anchor]}.md#{anchor})"


def write_commands(folder: Path) -> Iterator[tuple[str, Path]]:
    """A page for each command of neox and of the installed plugins: its help, as the terminal shows it."""
    for names, command, context in _commands(("neox",), neox, click.Context(neox, info_name="neox")):
        page, title = folder / f"{'-'.join(names[1:]) or 'neox'}.md", " ".join(names)
        shown = command.get_help(context)
        _write(page, f"# {title}\n\n```text\n{shown}\n```\n")
        yield title, page


def _commands(
    names: Sequence[str], command: click.Command, context: click.Context
) -> Iterator[tuple[Sequence[str], click.Command, click.Context]]:
    context.max_content_width = 100
    yield names, command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None:
                yield from _commands((*names, name), inner, click.Context(inner, parent=context, info_name=name))


def _entry(pages: Path, page: str) -> dict[str, str]:
    title = (pages / page).read_text("utf-8").partition("\n")[0].removeprefix("# ").replace("`", "")
    return {title: page}


def _anchors(text: str) -> Iterator[str]:
    return (_slug(line) for line in re.findall(r"^#+ .*$", text, re.MULTILINE))


def _slug(heading: str) -> str:
    words = re.sub(r"[^\w\s-]", "", heading.partition("\n")[0].lstrip("#").strip().lower())
    return re.sub(r"[-\s]+", "-", words)


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


if __name__ == "__main__":
    write_site(Path(sys.argv[1]))

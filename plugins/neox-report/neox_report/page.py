"""The page: one HTML file with everything in it. Its scripts are allowed by their hashes, and nothing else is."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from html import escape
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path
from typing import Any

from neox_core.errors import PluginError
from neox_report.describe import in_text

PLOTLY = "plotly/package_data/plotly.min.js"


def write_page(content: Mapping[str, Any], *, live: bool = False) -> str:
    """The page's text. live: it reads `data.json` beside it again and again. Raises PluginError without plotly."""
    plotly, licence = _plotly()
    script, style = _own("report.js"), _own("report.css")
    names = ", ".join(run["name"] for run in content["runs"])
    return "".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{policy(live=live)}">\n',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
            '<meta name="color-scheme" content="light dark">\n',
            '<link rel="icon" href="data:,">\n',
            f"<title>{escape(names)} - neox report</title>\n<style>\n{style}</style>\n</head>\n",
            f'<body data-live="{"yes" if live else "no"}">\n',
            "<noscript>This page draws with JavaScript, all of which is in the file.</noscript>\n",
            '<main id="report" aria-busy="true"></main>\n',
            "<footer><details><summary>Drawn with plotly.js (MIT licence)</summary>",
            f"<pre>{escape(licence)}</pre></details></footer>\n",
            f'<script type="application/json" id="content">{in_text(content)}</script>\n',
            f"<script>{plotly}</script>\n<script>{script}</script>\n</body>\n</html>\n",
        )
    )


@cache
def policy(*, live: bool) -> str:
    """The Content-Security-Policy of the page: its own two scripts, and nothing from a network.

    plotly.js writes style attributes, which have no hashes.
    """
    hashes = " ".join(f"'sha256-{_hash(text)}'" for text in (_plotly()[0], _own("report.js")))
    connect = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _own(name: str) -> str:
    return (files("neox_report") / "page" / name).read_text(encoding="utf-8")


@cache
def _plotly() -> tuple[str, str]:
    """plotly.js as the installed package has it, and its licence. Nothing of the package is imported."""
    try:
        found = distribution("plotly")
        script = Path(str(found.locate_file(PLOTLY))).read_text(encoding="utf-8").strip()
        licences = [each for each in found.files or () if each.name.startswith("LICENSE")]
        licence = licences[0].read_text() if licences else ""
    except (PackageNotFoundError, OSError) as error:
        raise PluginError(
            f"the page is drawn with plotly, which cannot be read: {error}", hint="pip install plotly"
        ) from error
    if "</script" in script.lower():
        raise PluginError(f"plotly {found.version} cannot stand in a page", hint="install another version of plotly")
    return script, f"{script[: script.index('*/') + 2]}\n\n{licence}" if "*/" in script[:2000] else licence

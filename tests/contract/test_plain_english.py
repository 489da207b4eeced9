"""Docs, docstrings, comments and messages avoid phrases that a technical writer would not use.

The list cannot judge a text. It keeps out phrases that were in the tree once, each with what to write instead.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTEAD = {
    r"goes on (from|with|where)|go on (from|with|where)|went on (from|with)": "continues",
    r"begins? anew|anew\b": "restarts, starts at step 0, again",
    r"(?<!\bthere )(?<!\bwhere )\b(is|are|was|were) no (?!longer\b|more than\b)": "is not a",
    r"says (at its start|so\b|on what|no\b|none\b|which\b|by\b)|and says so": "reports, prints, lists",
    r"\bresting\b": "default",
    r"\bparted\b": "split, separate",
    r"otherwise:": "say what differs",
    r"all the same\b|in their midst|in the midst": "anyway, in the middle",
    r"\b(vanish|mend|heed|betoken|beget|thereof|therein|whence|lest)(s|es|ed)?\b": "the common word",
}

GENERATED = {"configuration.md", "hooks.md"}


def texts() -> list[Path]:
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")]
    return sorted(document for document in documents if document.name not in GENERATED)


@pytest.mark.parametrize("phrase", INSTEAD)
def test_no_phrase_to_avoid(phrase: str) -> None:
    find = re.compile(phrase, re.IGNORECASE)
    hits = [
        f"{path.relative_to(ROOT)}: {found[0]!r}, write: {INSTEAD[phrase]}"
        for path in texts()
        if (found := find.search(" ".join(path.read_text("utf-8").split())))
    ]
    assert not hits, "\n".join(hits)

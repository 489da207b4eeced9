"""Docs, docstrings, comments and messages avoid phrases that a technical writer would not use.

The list cannot judge a text. It keeps out phrases that were in the tree once, each with what to write instead.
"""

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTEAD = {
    r"\b(goes|go|going|gone|went) on (from|with|where|at)\b|\bgoes on\b": "continues",
    r"(?<!\{)\banew\b(?!\})": "restarts, starts at step 0, again",
    r"(?<!\bthere )(?<!\bwhere )\b(is|are|was|were) no (?!longer\b|more than\b|ids\b)": "is not a",
    r"says at its start|and says so\b|that says so\b": "reports, prints, lists",
    r"resting value": "default",
    r"\bparted (in|into|among|documents)\b": "split, separate",
    r"\b(rounds|computes) otherwise\b": "say what differs",
    r"\ball the same[.,;:]|in (their|the) midst\b|without a word\b": "anyway, in the middle, silently",
    r"\b(vanish|mend|heed|thereof|therein|whence|lest)(s|es|ed)?\b": "the common word",
    r"\bthe user's to mend\b|\bnobody (asks|reads|asked|waits)\b": "nothing reads it",
}


def prose() -> dict[Path, str]:
    """The text of each document, and the comments and string literals of each module."""
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("plugins/*/README.md")]
    texts = {path: path.read_text("utf-8") for path in documents}
    for path in [*ROOT.glob("neox_core/**/*.py"), *ROOT.glob("plugins/*/neox_*/**/*.py")]:
        tokens = tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline)
        texts[path] = "\n".join(each.string for each in tokens if tokenize.tok_name[each.type] in SPOKEN)
    return {path: " ".join(text.split()) for path, text in texts.items()}


SPOKEN = {"STRING", "COMMENT", "FSTRING_MIDDLE"}
PROSE = prose()


@pytest.mark.parametrize("phrase", INSTEAD)
def test_no_phrase_to_avoid(phrase: str) -> None:
    find = re.compile(phrase, re.IGNORECASE)
    hits = [
        f"{path.relative_to(ROOT)}: {text[max(0, found.start() - 30) : found.end() + 30]!r}, write: {INSTEAD[phrase]}"
        for path, text in sorted(PROSE.items())
        for found in find.finditer(text)
    ]
    assert not hits, "\n".join(hits)

"""Patterns of the names of layers."""

from __future__ import annotations

import re
from functools import lru_cache

PATTERN_LENGTH = 200
"""Longest pattern of names, in characters."""
MOST_REPEATS = 3
"""Most repeats (`*`, `+`, `?`, `{`) in a pattern: the time of a match grows with their power."""
_REPEATED_GROUP = re.compile(r"\)[*+?{]")


def check_pattern(pattern: str) -> None:
    """Raises ValueError for what is not a regular expression, or one that could take long to match."""
    if pattern == "*":
        return
    if len(pattern) > PATTERN_LENGTH:
        raise ValueError(f"a pattern must have at most {PATTERN_LENGTH} characters")
    if _REPEATED_GROUP.search(pattern):
        raise ValueError("a pattern must not repeat a group in brackets, which can take long to match")
    if sum(pattern.count(each) for each in "*+?{") > MOST_REPEATS:
        raise ValueError(f"a pattern must repeat something at most {MOST_REPEATS} times")
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"must be a part of a name or a regular expression: {error}") from error


def has(patterns: tuple[str, ...], name: str) -> bool:
    """Whether a pattern matches a part of a layer's name."""
    return any(pattern == "*" or _compiled(pattern).search(name) is not None for pattern in patterns)


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)

"""Validators at their bounds, and what they say."""

from typing import Any

import pytest
from attrs import validators as v
from neox_author.api import allowed_in_words

from neox_core.config.schema.checks import above, at_least, between, distinct, not_empty, only, probability


@pytest.mark.parametrize(
    ("check", "words", "passes", "fails"),
    [
        (above(0), "greater than 0", [1, 0.001, None], [0, -1]),
        (at_least(2), "2 or more", [2, 3, None], [1.999]),
        (between(0, 1), "from 0 to 1", [0, 0.5, 1, None], [-0.001, 1.001]),
        (probability, "at least 0 and below 1", [0.0, 0.999], [1.0, -0.001]),
        (only(False), "only false in this version", [False], [True, 0]),
        (only("a", "b"), "only 'a' or 'b' in this version", ["a", "b"], ["c"]),
        (not_empty, "not empty", ["a", [1], None], ["", []]),
        (distinct, "nothing twice", [["a", "b"], []], [["a", "a"]]),
        (v.and_(v.gt(0), v.le(1)), "> 0 and <= 1", [0.001, 1], [0, 1.001]),
        (v.optional(v.ge(1)), ">= 1", [None, 1], [0]),
        (v.in_([1, 2]), "one of 1, 2", [1], [3]),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_check(check: Any, words: str, passes: list[Any], fails: list[Any]) -> None:
    assert allowed_in_words(check) == words
    for value in passes:
        check(None, None, value)
    for value in fails:
        with pytest.raises(ValueError):
            check(None, type("Field", (), {"name": "x"})(), value)

"""Shares of the documents."""

from typing import Any

import pytest

from neox_core.config.problem import MisfitError
from neox_core.plan.split import shares


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("969, 30, 1", (0.969, 0.03, 0.001)),
        ("995,4,1", (0.995, 0.004, 0.001)),
        ("90/10", (0.9, 0.1, 0.0)),
        ("1", (1.0, 0.0, 0.0)),
        ((3.0, 1.0), (0.75, 0.25, 0.0)),
        ("0,0,5", (0.0, 0.0, 1.0)),
    ],
)
def test_shares(written: Any, expected: tuple[float, float, float]) -> None:
    assert shares(written) == pytest.approx(expected)


@pytest.mark.parametrize("written", ["", "a,b", "1,2,3,4", "0,0", "-1,2", "inf,1", "nan", (), (1.0, -1.0)])
def test_what_are_no_shares(written: Any) -> None:
    with pytest.raises(MisfitError):
        shares(written)

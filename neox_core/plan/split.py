"""`split`: shares of the documents for training, validation and test."""

import math
from collections.abc import Sequence

from neox_core.config.problem import MisfitError

KEY, HINT = "split", "such as 969, 30, 1"


def shares(split: str | Sequence[float]) -> tuple[float, float, float]:
    """Three shares that add up to 1, from "969, 30, 1", "90/10" or a list; a share that is left out is 0.

    Raises MisfitError.
    """
    try:
        parts = [float(part) for part in (split.replace("/", ",").split(",") if isinstance(split, str) else split)]
    except ValueError:
        raise MisfitError("must be one to three numbers", KEY, HINT) from None
    if not 1 <= len(parts) <= 3:
        raise MisfitError(f"must be one to three numbers, not {len(parts)}", KEY, HINT)
    if not all(math.isfinite(part) and part >= 0 for part in parts) or sum(parts) <= 0:
        raise MisfitError("must be non-negative shares, at least one of them above 0", KEY, HINT)
    total = sum(parts)
    train, valid, test = (part / total for part in (*parts, 0.0, 0.0)[:3])
    return train, valid, test

"""The names of the kit, and where API 1 had them."""

from pathlib import Path

import pytest
import torch
from neox_author import testing
from neox_author.testing.ranks import hold_same

import neox_core.testing

PAGE = (Path(__file__).resolve().parents[3] / "docs/plugins.md").read_text("utf-8")

NEW = {f"check_{kind}" for kind in ("architecture", "callback", "command", "curriculum", "dialect", "engine")}
NEW |= {"Reading", *(f"check_{kind}" for kind in ("evaluator", "kernel", "store"))}
"""What `neox_core.testing` never had."""


def test_the_kit_lists_what_it_has() -> None:
    """Every check is imported when it is asked for, and is there to be completed and found before that."""
    assert dir(testing) == sorted(testing.__all__)
    for name in dir(testing):
        assert callable(getattr(testing, name))
        assert f"`{name}" in PAGE
        if name in NEW:
            continue
        assert getattr(neox_core.testing, name) is getattr(testing, name)


def test_a_tensor_that_is_too_far_off_is_named_with_how_far() -> None:
    wanted, got = {"a": torch.ones(2), "b": torch.zeros(3)}, {"a": torch.ones(2), "b": torch.full((3,), 2e-4)}
    for allowed, noise in (("1e-05", None), ("1e-05", {"a": 1.0}), ("0.0001", {"b": 1e-4})):
        with pytest.raises(AssertionError, match=f"^it is the same: b differs by 0.0002, where {allowed} is allowed$"):
            hold_same("it is the same", got, wanted, 1e-5, noise)
    hold_same("it is the same", got, wanted, 1e-5, {"b": 3e-4})
    with pytest.raises(AssertionError, match=r"^it is the same: c differs$"):
        hold_same("it is the same", {"c": torch.tensor([True])}, {"c": torch.tensor([False])}, 0)
    with pytest.raises(AssertionError, match=r"^it is the same: b differs: it is \[3\], not \[2\]$"):
        hold_same("it is the same", got, {"b": torch.zeros(2)}, 1e-5)

"""The names of the kit, and where API 1 had them."""

from pathlib import Path

from neox_author import testing

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

"""What a plan names and nobody builds stops the run."""

import pytest

from neox_core.errors import ConfigError
from neox_core.plan.runfile import ComponentRef
from neox_core.run.consumed import require_consumed


def part(kind: str, name: str, **settings: object) -> ComponentRef:
    return ComponentRef(kind, name, "neox-test", "1", "math:floor", None, dict(settings))


def test_a_component_that_nobody_asked_for_is_named_with_its_keys() -> None:
    read, unread = part("norm", "flat"), part("position", "round", turns=2)
    launcher = part("launcher", "local")
    read.load()
    with pytest.raises(ConfigError, match=r"position round \(turns\)") as caught:
        require_consumed((read, unread, launcher))  # type: ignore[arg-type]
    assert "norm" not in caught.value.message
    require_consumed((read, launcher))  # type: ignore[arg-type]

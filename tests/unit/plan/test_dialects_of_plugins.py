"""Dialects that plugins bring are asked for every config: what is said of one that fails."""

from collections.abc import Callable
from typing import Any

import pytest

from neox_core.api import Component, hookimpl
from neox_core.config.problem import Problem
from neox_core.errors import PluginError


class Silent:
    """A dialect that knows no key, and has each of `parts` in place of its own."""

    older: Any = ()

    def __init__(self, **parts: Any) -> None:
        for name, part in parts.items():
            setattr(self, name, part)

    def translate(self, loaded: Any) -> Any:
        return loaded

    def explain(self, path: str, value: Any) -> list[Problem] | None:
        return [Problem("is of the other program", path)] if path == "its_own" else None

    def explain_name(self, kind: str, name: str) -> tuple[str, str] | None:
        return None

    def names_in(self, path: str) -> tuple[str, ...]:
        return ()


DIALECT: Any = Silent()


def fail(*_: Any) -> Any:
    raise ValueError("boom")


class Speaking:
    """The plugin."""

    more: dict[str, Any]

    def __init__(self, **more: Any) -> None:
        self.more = more

    @hookimpl
    def neox_dialects(self) -> list[Component]:
        return [Component("other", f"{__name__}:DIALECT", **self.more)]


@pytest.fixture
def said(check: Callable[..., list[str]], plugins: Any, everything: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is said of a config with a key that is unknown, beside a dialect."""

    def said(dialect: Any, key: str = "xyzzy=1", **more: Any) -> list[str]:
        monkeypatch.setitem(globals(), "DIALECT", dialect)
        return check(key, catalog=plugins(everything=everything, speaking=Speaking(**more)))

    return said


@pytest.mark.parametrize(
    ("dialect", "cause"),
    [
        (Silent(translate=fail), r"ValueError: boom \([a-z_.]*test_dialects_of_plugins, line \d+\)"),
        (Silent(translate=lambda loaded: None), "TypeError: translate is None"),
        (Silent(older=None), "TypeError: older is None"),
        (Silent(explain=fail), "ValueError: boom"),
        (Silent(explain=lambda *_: 3), "TypeError: explain is 3"),
        (Silent(names_in=lambda path: None), "TypeError: names_in is None"),
        (fail, "AttributeError: 'function' object has no attribute '(older|translate)'"),
    ],
)
def test_one_that_fails_is_named_with_how_to_switch_it_off(said: Any, dialect: Any, cause: str) -> None:
    with pytest.raises(PluginError, match=rf"^dialect speaking:other unknown: {cause}") as error:
        said(dialect)
    assert error.value.hint == "tell the author of speaking; NEOX_PLUGINS_DISABLE=speaking switches it off"


def test_one_that_lacks_a_module_is_named_with_how_to_switch_it_off(said: Any) -> None:
    with pytest.raises(PluginError, match=r"^dialect speaking:other needs nowhere_at_all, not installed") as error:
        said(Silent(), needs=("nowhere_at_all",))
    assert error.value.hint.endswith("; NEOX_PLUGINS_DISABLE=speaking switches it off")


def test_one_that_works_explains_its_own_keys_alone(said: Any) -> None:
    assert said(Silent(), "its_own=1") == ["--set: error: its_own: is of the other program"]
    (unknown,) = said(Silent())
    assert unknown.startswith("--set: error: xyzzy: unknown key")

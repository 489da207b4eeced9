import sys
from pathlib import Path
from typing import Any

import pytest

from neox_core.api import Component
from neox_core.errors import DataError, PluginError
from neox_core.hooks.component import load_path, path_of
from neox_core.hooks.registry import Entry, PluginInfo


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str) -> str:
        (tmp_path / "test_target_module.py").write_text(text)
        monkeypatch.delitem(sys.modules, "test_target_module", raising=False)
        return "test_target_module:thing.part"

    return write


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no attribute 'thing'"),
        ("thing = 1", "has no attribute 'part'"),
        ("import no_such_library", "No module named 'no_such_library'"),
        ("raise RuntimeError('cold')", "RuntimeError: cold"),
        ("def f(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_whatever_a_target_does_is_an_error_with_its_path(module: Any, text: str, said: str) -> None:
    path = module(text)
    with pytest.raises(PluginError) as error:
        load_path(path)
    assert path in error.value.message
    assert said in error.value.message
    entry = Entry("norm", Component("n", path, needs=("no_such_library",)), PluginInfo("neox-a", "1.0", "a", "a"))
    with pytest.raises(PluginError, match=r"norm neox-a:n 1\.0: cannot load") as error:
        entry.load()
    assert error.value.hint == "install what it needs: no_such_library"


def test_an_error_of_our_own_keeps_its_exit_code(module: Any) -> None:
    path = module("from neox_core.errors import DataError\nraise DataError('no file')")
    with pytest.raises(DataError):
        load_path(path)


def test_a_class_is_found_by_its_path() -> None:
    assert load_path(path_of(Component)) is Component


def test_needs_are_looked_for_and_not_imported() -> None:
    component = Component("n", "math:floor", needs=("no_such_library", "turtledemo"))
    assert component.missing() == ("no_such_library",)
    assert "turtledemo" not in sys.modules

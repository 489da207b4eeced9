from pathlib import Path

import pytest

from neox_core.errors import PluginError
from neox_core.hooks.switches import VARIABLE, disabled_plugins, misspelt


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def test_the_nearest_pyproject_that_speaks_of_neox_counts(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "pyproject.toml").write_text('[project]\nname = "neox-user"\n')
    near, far = tmp_path / "a" / "pyproject.toml", tmp_path / "pyproject.toml"
    near.write_text('[tool.neox]\ndisable = ["Neox_Near"]\n')
    far.write_text('[tool.neox]\ndisable = ["neox-far"]\n')
    assert disabled_plugins(inner) == {"neox-near": str(near)}
    near.unlink()
    assert disabled_plugins(inner) == {"neox-far": str(far)}


def test_the_environment_adds_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.neox]\ndisable = ["neox-a"]\n')
    monkeypatch.setenv(VARIABLE, " neox.b,, neox-c ,")
    assert disabled_plugins(tmp_path) == {
        "neox-a": str(tmp_path / "pyproject.toml"),
        "neox-b": VARIABLE,
        "neox-c": VARIABLE,
    }


@pytest.mark.parametrize(
    "text",
    [
        "[tool]\nneox = 3",
        '[tool]\nneox = "disable"',
        "[[tool.neox]]\ndisable = []",
        "[tool.neox]\ndisable = {neox-a = true}",
        "[tool.neox]\ndisable = [1]",
        "[tool.neox]\noff = ['neox-a']",
        f"[tool.neox]\ndisable = {'[' * 5000}{']' * 5000}",
        f"[tool.neox]\ndisable = {'9' * 5000}",
        f"[tool.neox]\n{'a' * 100_000} = 1",
    ],
)
def test_a_pyproject_of_another_form_is_one_short_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"{text}\n")
    with pytest.raises(PluginError, match=r"\[tool\.neox\]") as caught:
        disabled_plugins(tmp_path)
    assert len(caught.value.message) < 800


def test_tool_may_be_something_else(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('tool = "of neox"\n')
    assert disabled_plugins(tmp_path) == {}


@pytest.mark.parametrize(
    "name", ["NEOX_PLUGIN_DISABLE", "NEOX_PLUGINS_DISABLED", "NEOX_DISABLE_PLUGINS", "NEOX_DISABLE", "NEOX_PLUGINS_OFF"]
)
def test_a_variable_of_nearly_the_name_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for other in ("NEOX_API_KEY", "NEOX_RUN_TOKEN", "NEOX_STORE_PLACE", VARIABLE):
        monkeypatch.setenv(other, "neox-a")
    assert misspelt() == []
    monkeypatch.setenv(name, "neox-a")
    assert misspelt() == [name]

from pathlib import Path

import pytest

from neox_core.hooks.switches import VARIABLE, disabled_plugins


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

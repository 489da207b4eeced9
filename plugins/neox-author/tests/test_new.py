"""`neox plugins new`: what it writes passes its own tests; no name is taken twice, and no folder is overwritten."""

import json
import re
import sys
from importlib import invalidate_caches
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from neox_author.new import kind_of, write_plugin
from neox_author.project import as_installed, read_project
from neox_author.template import folder_of, kit_of

from neox_core.cli.main import neox
from neox_core.errors import UsageError
from neox_core.hooks.component import GROUP
from neox_core.hooks.loader import load_plugins

KINDS = [name for name, kind in load_plugins().registry.kinds.items() if folder_of(kind)]
ALL = ["activation", "data backend", "launcher", "lr schedule", "monitor", "norm", "objective", "optimizer"]
ALL += ["position", "scheduler", "sparse layout", "tokenizer"]


def new(folder: Path, kind: str, name: str) -> tuple[int, str]:
    done = CliRunner().invoke(neox, ["plugins", "new", kind, name, "--dir", str(folder)])
    return done.exit_code, done.output


def test_every_kind_with_a_kit_has_a_template() -> None:
    assert set(ALL) <= set(KINDS)
    assert [kind.name for kind in load_plugins().registry.kinds.values() if kit_of(kind) and not folder_of(kind)] == []


def test_what_was_written_as_json(tmp_path: Path) -> None:
    done = CliRunner().invoke(neox, ["plugins", "new", "norm", "neox-tried", "--dir", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    there = {str(each.relative_to(tmp_path / "neox-tried")) for each in tmp_path.rglob("*") if each.is_file()}
    assert (found["folder"], set(found["files"])) == (str(tmp_path / "neox-tried"), there)


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_plugin_passes_its_own_tests(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"neox-tried-{kind.replace(' ', '-')}"
    code, said = new(tmp_path, kind.replace(" ", "-"), name)
    assert code == 0, said
    project = read_project(tmp_path / name)
    test = tmp_path / name / "tests/test_contract.py"
    with as_installed(project) as folders, monkeypatch.context() as patch:
        for folder in folders:
            patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", ":".join(folders))
        invalidate_caches()
        found: dict[str, Any] = {}
        exec(compile(test.read_text(), str(test), "exec"), found)
        tests = [each for each in found if each.startswith("test_")]
        assert tests == ["test_listing_is_light", "test_contract"]
        for each in (
            tests if kind == "monitor" else tests[1:]
        ):  # loading it refuses heavy imports too, without a process
            found[each]()
    assert f"{project.name.replace('-', '_')}.component" in sys.modules
    assert all(
        (tmp_path / name / each).stat().st_size for each in ("README.md", "LICENSE", ".github/workflows/test.yml")
    )


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("optimiser", "neox-x", "'optimiser' is not a kind of component.*use one of .*optimizer"),
        ("norm", "../neox-x", "cannot be the name of a distribution"),
        ("norm", "neox-x/y", "cannot be the name of a distribution"),
        ("norm", "neox-\u00e9", "cannot be the name of a distribution"),
        ("norm", "neox-x\n", "cannot be the name of a distribution"),
        ("norm", "a" * 65, "cannot be the name of a distribution"),
        ("norm", "3d", "'3d' cannot be the name of a Python package.*use neox-3d"),
        ("norm", "lambda", "'lambda' cannot be the name of a Python package"),
        ("norm", "json", "a module json is installed"),
        ("norm", "Neox_Author", "is a package of neox itself|a distribution Neox_Author is installed"),
        ("command", "neox-train", "`neox train` is a command of neox itself"),
        ("norm", "neox-lion", "neox-lion is a package of neox itself"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(kind: str, name: str, said: str, tmp_path: Path) -> None:
    code, text = new(tmp_path, kind, name)
    assert code == 2
    assert re.search(said, text, re.DOTALL), text
    assert not list(tmp_path.iterdir())


def test_the_name_of_an_installed_component_is_refused(tmp_path: Path) -> None:
    catalog = load_plugins([EntryPoint("neox-causal-lm", "neox_causal_lm.plugin", GROUP)], {})
    said = "neox-causal-lm offers the objective 'causal-lm', and that of Causal.LM would have its name"
    with pytest.raises(UsageError, match=said):
        write_plugin(catalog, kind_of(catalog, "objective"), "Causal.LM", tmp_path)


@pytest.mark.parametrize("there", ["folder", "file", "link"])
def test_what_is_there_is_not_overwritten(there: str, tmp_path: Path) -> None:
    place = tmp_path / "neox-x"
    {"folder": place.mkdir, "file": place.touch, "link": lambda: place.symlink_to(tmp_path / "nowhere")}[there]()
    code, text = new(tmp_path, "monitor", "neox-x")
    assert code == 2
    assert "neox-x is there already" in text
    assert [each.name for each in tmp_path.iterdir()] == ["neox-x"]
    assert not list(tmp_path.glob("neox-x/*"))


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    code, text = new(tmp_path / "nowhere", "monitor", "neox-x")
    assert code == 2
    assert "cannot make the folder: No such file or directory" in text

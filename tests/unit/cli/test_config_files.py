"""`neox config check --json` and `diff`: output, exit codes, files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from neox_core.cli.main import neox
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import write_runfile

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, catalog: Any) -> Run:
    """A `neox config` command line in a folder that holds c.yml, without colours."""
    for name in ("neox_core.plan.resolve.load_plugins", "neox_reference.show.loaded", "neox_reference.diff.loaded"):
        monkeypatch.setattr(name, lambda: catalog)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    Path("c.yml").write_text(text)
    return lambda *arguments: CliRunner().invoke(neox, ["config", *arguments])


def test_problems_as_json_for_editors(run: Run) -> None:
    Path("d.yml").write_text("sede: [1, x]\ngeglu: true\nmin-lr: fast\n")
    result = run("check", "--json", "c.yml", "d.yml", "gone.yml", "--set", "warmup=9")
    assert result.exit_code == 2
    listed = json.loads(result.stdout)
    assert [list(each) for each in listed] == [
        ["file", "line", "column", "key", "value", "message", "hint", "severity"]
    ] * len(listed)
    told = {each["key"]: each for each in listed}
    assert told["sede"] == {
        "file": "d.yml",
        "line": 1,
        "column": 1,
        "key": "sede",
        "value": '[1, "x"]',
        "message": "unknown key",
        "hint": "did you mean seed?",
        "severity": "error",
    }
    assert (told["geglu"]["severity"], told["geglu"]["value"]) == ("note", "true")
    assert (told["min-lr"]["line"], told["min-lr"]["value"]) == (3, '"fast"')
    assert (told["warmup"]["file"], told["warmup"]["line"], told["warmup"]["value"]) == (None, None, "9")
    assert (told[""]["file"], told[""]["line"], told[""]["value"]) == ("gone.yml", None, "")


def test_json_of_a_config_that_holds(run: Run) -> None:
    result = run("check", "--json", "c.yml")
    assert (result.exit_code, json.loads(result.stdout)) == (0, [])


def test_json_of_a_plugins_fault(run: Run) -> None:
    result = run("check", "--json", "c.yml", "--set", "norm=scalenorm")
    assert result.exit_code == 3
    assert [each["key"] for each in json.loads(result.stdout)] == ["norm"]


def test_equal_configs(run: Run) -> None:
    Path("d.yml").write_text("# another name, other spellings\n" + Path("c.yml").read_text().replace("num-l", "num_l"))
    result = run("diff", "c.yml", "d.yml")
    assert (result.exit_code, result.stdout) == (0, "")


def test_what_differs_with_where_it_came_from(run: Run) -> None:
    Path("d.yml").write_text("norm: rmsnorm\nintermediate-size: 100\n")
    result = run("diff", "c.yml", "c.yml,d.yml")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "model.intermediate_size",
        "  - 256  (derived from 4 x hidden-size)",
        "  + 100  (set in d.yml:2:1)",
        "model.norm",
        "  - layernorm (everything unknown)  (default)",
        "  + rmsnorm (everything unknown)  (set in d.yml:1:1)",
        "model.norm.settings.layernorm_epsilon",
        "  - 1e-05  (default)",
        "  + null  (not there)",
        "model.norm.settings.rms_norm_epsilon",
        "  - null  (not there)",
        "  + 1e-08  (default)",
    ]
    rows = json.loads(run("diff", "c.yml", "c.yml,d.yml", "--json").stdout)
    assert [(row["path"], row["a"], row["b"]) for row in rows][:1] == [("model.intermediate_size", 256, 100)]


def test_sections_of_plugins_are_shown_and_compared(run: Run) -> None:
    Path("d.yml").write_text("extra-level: 3\n")
    assert run("diff", "c.yml", "c.yml,d.yml").stdout.splitlines() == [
        "extra_level",
        "  - 1  (default)",
        "  + 3  (set in d.yml:1:1)",
    ]
    assert "extra_level" not in run("show", "c.yml").stdout
    (row,) = [line for line in run("show", "c.yml", "d.yml").stdout.splitlines() if line.startswith("extra_level ")]
    assert row.split() == ["extra_level", "3", "set", "in", "d.yml:1:1"]
    assert json.loads(run("show", "c.yml", "d.yml", "--json").stdout)["sections"] == {"extra_level": 3}


def test_a_config_against_a_run(run: Run, catalog: Any) -> None:
    plan = prepare_run([Path("c.yml")], ["seed=7"], catalog=catalog, machine=Machine(0, 4)).plan
    Path("out").mkdir()
    write_runfile(plan, Path("out/run.json"))
    rows = json.loads(run("diff", "out", "c.yml", "--json").stdout)
    told = {row["path"]: row for row in rows if row["path"] == "train.seed"}
    assert told["train.seed"]["a_origin"] == "out/run.json"
    assert (told["train.seed"]["a"], told["train.seed"]["b"]) == (7, 1234)
    assert run("diff", "out/run.json", "out").exit_code == 0


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [("empty", None, "cannot be read"), ("bad", "{", "cannot be read"), ("list", "[]", "not a JSON object")],
)
def test_what_is_no_run(run: Run, name: str, content: str | None, said: str) -> None:
    Path(name).mkdir()
    if content is not None:
        Path(name, "run.json").write_text(content)
    result = run("diff", "c.yml", name)
    assert result.exit_code == 2
    assert said in result.stderr


def test_files_of_a_folder(run: Run) -> None:
    Path("more").mkdir()
    Path("c.yml").rename("more/c.yml")
    Path("more/d.yml").write_text("seq-length: 4\n")
    assert run("check", "-d", "more", "c").exit_code == 0
    assert run("check", "-d", "more", "c", "d").exit_code == 2
    result = run("check", "-d", "more", "c", "d", "--last-wins")
    assert (result.exit_code, "note: seq-length: wins over more/c.yml:" in result.stderr) == (0, True)

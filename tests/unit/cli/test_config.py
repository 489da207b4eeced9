"""`neox config`: what it prints, where, and the exit codes."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from neox_core.cli.main import neox
from neox_core.config.read.load import load

Run = Callable[..., Result]
REFERENCES = Path(__file__).parents[2] / "data/gpt-neox"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, catalog: Any) -> Run:
    """A `neox config` command line in a folder that holds c.yml, without colours."""
    for name in ("neox_core.plan.resolve.load_plugins", "neox_reference.show.loaded", "neox_reference.diff.loaded"):
        monkeypatch.setattr(name, lambda: catalog)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("NEOX_DEBUG", raising=False)
    Path("c.yml").write_text(text)

    def _run(*arguments: str) -> Result:
        return CliRunner().invoke(neox, ["config", *arguments])

    return _run


def test_check_says_ok_in_one_line(run: Run) -> None:
    result = run("check", "c.yml", "--set", "num-gpus=2")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "ok: c.yml: 2 layers of width 64, 100 steps of 256 tokens, fp32, 2 ranks on cpu",
        "size: not known before a start: position learned does not tell before it is loaded",
        "exports as nothing, because no plugin offers a model family",
    ]
    assert result.stderr == ""


def test_check_gives_each_reason_against_an_export_a_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"llama": "needs norm: rmsnorm", "gpt2": "needs pos-emb: learned"}
    monkeypatch.setattr("neox_core.cli.config.exports", lambda *_: found)
    assert run("check", "c.yml").stdout.splitlines()[-3:] == [
        "exports as nothing, because",
        "  llama: needs norm: rmsnorm",
        "  gpt2: needs pos-emb: learned",
    ]


def test_check_says_why_a_model_exports_as_one_family_alone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"llama": "needs rms-norm-epsilon-in: mean-square", "neox": ""}
    monkeypatch.setattr("neox_core.cli.config.exports", lambda *_: found)
    said = ["exports as neox alone, because", "  llama: needs rms-norm-epsilon-in: mean-square"]
    assert run("check", "c.yml").stdout.splitlines()[-2:] == said
    monkeypatch.setattr("neox_core.cli.config.exports", lambda *_: {"neox": ""})
    assert run("check", "c.yml").stdout.splitlines()[-1] == "exports as neox"


def test_check_as_if_on_a_cluster(run: Run) -> None:
    result = run("check", "c.yml", "--on", "2x4", "--set", "hostfile=/nowhere", "--set", "include=worker-1")
    told = result.stdout.splitlines()[0]
    assert told == "ok: c.yml: 2 layers of width 64, 100 steps of 1,024 tokens, fp32, 8 ranks on cuda"
    few = run("show", "c.yml", "--on", "2x4", "--set", "num_gpus=1", "--json")
    hosts = json.loads(few.stdout)["plan"]["cluster"]["hosts"]
    assert [(host["name"], host["slots"]) for host in hosts] == [("host-0", 1), ("host-1", 1)]
    assert run("diff", "c.yml", "c.yml", "--on", "2x4").exit_code == 0
    wrong = run("check", "c.yml", "--on", "8")
    assert wrong.exit_code == 2
    assert "HOSTSxGPUS, such as 12x8, at most 99999x999, not '8'" in str(wrong.output) + str(wrong.exception)


def test_check_reports_all_problems_of_all_files_with_exit_2(run: Run) -> None:
    Path("d.yml").write_text("sede: 1\nseq-length: 64\n")
    result = run("check", "c.yml", "d.yml", "gone.yml", "--set", "num-layers=two")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "error: the configuration has 4 errors:",
        "--set: error: num-layers: must be a whole number, not 'two'",
        "d.yml:1:1: error: sede: unknown key (did you mean seed?)",
        "d.yml:2:1: error: seq-length: is given twice with different values; first at c.yml:5:1 (keep one of the two)",
        "gone.yml: error: cannot be read: no such file or directory",
    ]


def test_notes_go_to_stderr_and_stop_nothing(run: Run) -> None:
    result = run("check", "c.yml", "--set", "geglu=true")
    assert result.exit_code == 0
    assert result.stderr == "--set: note: geglu: is the old spelling of activation: geglu\n"


def test_a_missing_plugin_has_exit_3(run: Run) -> None:
    result = run("check", "c.yml", "--set", "norm=scalenorm")
    assert result.exit_code == 3
    assert "pip install ./plugins/neox-norms` in the repository of neox" in result.stderr


def test_no_file_is_a_usage_error(run: Run) -> None:
    assert run("check").exit_code == 2


def test_show_gives_each_value_with_its_origin(run: Run) -> None:
    result = run("show", "c.yml", "--set", "seed=9")
    assert result.exit_code == 0
    rows = {line.split("  ")[0]: [part for part in line.split("  ") if part][1:] for line in result.stdout.splitlines()}
    stripped = {path: [part.strip() for part in parts] for path, parts in rows.items()}
    assert stripped["model.num_layers"] == ["2", "set in c.yml:1:1"]
    assert stripped["train.seed"] == ["9", "set by --set"]
    assert stripped["model.norm"] == ["layernorm (everything unknown)", "default"]
    assert stripped["model.intermediate_size"] == ["256", "derived from 4 x hidden-size"]
    assert stripped["engine.zero_optimization.stage"] == ["0", "derived from the plan"]
    assert stripped["cluster.hosts"] == ["[localhost x 1]", "derived from this machine"]
    assert stripped["train.sample_prompt"] == ["null", "default"]


def test_show_as_json(run: Run) -> None:
    shown = json.loads(run("show", "c.yml", "--json", "--set", "save-interval=3").stdout)
    assert shown["plan"]["model"]["num_layers"] == 2
    assert shown["origins"]["model.num_layers"] == "set in c.yml:1:1"
    assert shown["notes"] == [
        "--set: warning: save-interval: does nothing without save (save: a folder for the checkpoints)"
    ]


def test_docs_to_the_terminal_or_a_file(run: Run) -> None:
    text = run("docs").stdout
    assert text.startswith("# Configuration")
    assert run("docs", "--out", "page.md").exit_code == 0
    assert Path("page.md").read_text() == text


@pytest.mark.parametrize("file", sorted(REFERENCES.glob("*.yml")), ids=lambda path: path.stem)
def test_configs_of_gpt_neox_are_read_and_what_is_missing_is_listed(run: Run, file: Path) -> None:
    result = run("check", str(file))
    assert result.exit_code in (2, 3)
    assert "Traceback" not in result.stderr
    lines = result.stderr.splitlines()
    assert len(lines) == len(set(lines))
    assert not [line for line in lines if "unknown key" in line]


def test_what_one_config_of_gpt_neox_asks_for_beyond_this_version(run: Run) -> None:
    result = run(
        "check", str(REFERENCES / "20B.yml"), "--set", "tokenizer-type=HFTokenizer", "--set", "pos-emb=learned"
    )
    named = [line.split(": error: ")[1].split(":")[0] for line in result.stderr.splitlines() if ": error: " in line]
    written = set(load([REFERENCES / "20B.yml"]).places)
    assert {key.replace("-", "_") for key in named if not key.endswith("is required")} <= written
    assert {"rotary_pct", "fp16.enabled", "distributed_backend"} <= set(named)


def test_a_config_of_gpt_neox_runs_once_its_missing_features_are_off(run: Run, dataset: str) -> None:
    off = [
        "checkpoint_activations",
        "partition_activations",
        "synchronize_each_layer",
        "fp16.enabled",
    ]
    lines = (REFERENCES / "125M.yml").read_text().splitlines()
    kept = [line for line in lines if not any(key in line for key in ("checkpoint_num_layers", "hostfile"))]
    Path("n.yml").write_text("\n".join(kept))
    sets = [f"{key}=false" for key in off]
    sets += ["distributed_backend=gloo", "pos_emb=learned", f"data-path={dataset}", "padded-vocab-size=50304"]
    result = run("show", "n.yml", "--json", *(part for each in sets for part in ("--set", each)))
    assert result.exit_code == 0, result.stderr
    plan = json.loads(result.stdout)["plan"]
    assert plan["model"]["hidden_size"] == 768
    assert plan["optim"]["lr"] == 0.0006
    assert plan["optim"]["min_lr"] == 0.00006
    assert plan["engine"]["zero_optimization"]["stage"] == 1
    assert plan["engine"]["zero_optimization"]["overlap_comm"] is True


def test_the_learning_rate_is_drawn(run: Run) -> None:
    result = run("show", "c.yml", "--plot-lr", "--set", "train-iters=1000", "--set", "warmup=0.25")
    assert result.exit_code == 0, result.stderr
    title, _, *chart = result.stdout.splitlines()
    assert title.strip() == "learning rate: linear, 1.33e-06 to 0.001"
    inside = [line.partition("┤")[2] or line.partition("│")[2] for line in chart[:-2]]
    tops = [min(row for row, line in enumerate(inside) if line[place : place + 3].strip()) for place in (0, 16, 60)]
    assert tops[1] == 0  # the end of the warm-up
    assert tops[0] >= len(inside) - 3  # the start
    assert tops[2] == len(inside) - 1  # the end


def test_no_heavy_library_is_imported(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.yml").write_text(text)
    script = (
        "import sys\n"
        "from neox_core.cli.main import main\n"
        "try:\n    main()\n"
        "finally:\n"
        "    heavy = {'torch', 'numpy', 'deepspeed', 'tokenizers', 'cattrs'} & set(sys.modules)\n"
        "    sys.stderr.write(f'HEAVY {sorted(heavy)}')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, "config", "check", str(tmp_path / "c.yml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stderr.endswith("HEAVY []"), ran.stderr

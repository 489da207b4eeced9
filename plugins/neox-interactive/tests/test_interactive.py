"""The functions of `neox_core`, and completion as bash does it. The page docs/python.md has a test in tests/e2e."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from neox_author.testing import assert_light

import neox_core
from neox_core.errors import CheckpointError, ConfigError, DataError, UsageError

NEOX = f"{sys.executable} -m neox_core"


def test_listing_is_light() -> None:
    assert_light("neox-interactive")


def test_importing_it_and_naming_its_functions_imports_no_torch() -> None:
    code = (
        "import sys, neox_core; neox_core.load, neox_core.train, neox_core.metrics;"
        "assert not {'torch', 'numpy', 'pandas', 'deepspeed'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_name_that_nobody_offers() -> None:
    with pytest.raises(AttributeError, match="'fly'"):
        _ = neox_core.fly
    assert not hasattr(neox_core, "__wrapped__")


def test_metrics_are_a_row_a_step(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    lines = [
        '{"step": 2, "time": 10.5, "loss": 3.0}',
        '{"step": 2, "time": 11, "valid_loss": 4}',
        '{"step": 4, "time": 12, "loss": null, "lr": 0.5}',
        '{"step": 2, "time": 13, "loss": 2.5}',  # after a rewind
        '{"step": 6, "ti',  # is being written
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    expected = pandas.DataFrame(
        {
            "time": [13.0, 12.0],
            "loss": [2.5, float("nan")],
            "valid_loss": [4.0, float("nan")],
            "lr": [float("nan"), 0.5],
        },
        index=pandas.Index([2, 4], name="step"),
    )
    for given in (tmp_path, str(tmp_path / "metrics.jsonl")):
        pandas.testing.assert_frame_equal(neox_core.metrics(given), expected)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"step": 1}\nwrong\n', "metrics.jsonl:2: cannot be read"),
        ('{"step": "1"}\n', "metrics.jsonl:1: its step is"),
        ('{"step": 1, "loss": "\\u001b[2J"}\n', "metrics.jsonl:1: 'loss' is"),
        ("[" * 100_000 + "\n", "metrics.jsonl:1: cannot be read"),
        ("x" * (1 << 20), "is longer than"),
    ],
)
def test_metrics_that_are_none(tmp_path: Path, text: str, said: str) -> None:
    pytest.importorskip("pandas")
    (tmp_path / "metrics.jsonl").write_text(text)
    with pytest.raises(DataError) as error:
        neox_core.metrics(tmp_path)
    assert said in str(error.value)
    assert "\x1b" not in str(error.value)


def test_metrics_without_the_file_or_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neox_interactive.metrics.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pandas"):
        neox_core.metrics(tmp_path)
    monkeypatch.setattr("neox_interactive.metrics.find_spec", lambda name: object())
    with pytest.raises((DataError, ImportError), match=r"is not there|pandas"):
        neox_core.metrics(tmp_path)


def test_mistakes_are_raised_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hiden-size"):
        neox_core.train({"hiden-size": 3})
    with pytest.raises(UsageError, match="cannot be written to a config"):
        neox_core.train({"seed": object()})
    with pytest.raises(CheckpointError, match="no checkpoint here"):
        neox_core.load(tmp_path / "none")


def completed(place: Path, words: list[str]) -> list[str]:
    """What bash offers for the last word."""
    program = place / "neox"
    program.write_text(f'#!/bin/sh\nexec {NEOX} "$@"\n')
    program.chmod(0o755)
    script = f"""
eval "$(neox completion bash)"
COMP_WORDS=(neox {" ".join(words)}); COMP_CWORD={len(words)}
_neox_completion neox
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    env = {**os.environ, "PATH": f"{place}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_bash_completes_commands_of_the_core_and_of_plugins(tmp_path: Path) -> None:
    assert completed(tmp_path, ["compl"]) == ["completion"]
    assert completed(tmp_path, ["config", "ch"]) == ["check"]
    assert completed(tmp_path, ["completion", "f"]) == ["fish"]
    assert "--run-dir" in completed(tmp_path, ["train", "--ru"])


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_ask_click(shell: str) -> None:
    done = subprocess.run([*NEOX.split(), "completion", shell], capture_output=True, text=True, timeout=60, check=True)
    assert f"_NEOX_COMPLETE={shell}_complete" in done.stdout
    words = "neox compl" if shell == "zsh" else "neox"
    env = {
        **os.environ,
        "_NEOX_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": "1" if shell == "zsh" else "compl",
    }
    asked = subprocess.run(NEOX.split(), capture_output=True, text=True, timeout=60, env=env, check=False)
    assert "completion" in asked.stdout.split("\n") if shell == "zsh" else "completion" in asked.stdout


def test_a_shell_is_told_what_names_a_file() -> None:
    env = {"_NEOX_COMPLETE": "zsh_complete", "COMP_WORDS": "neox generate --load te", "COMP_CWORD": "3"}
    asked = subprocess.run(
        NEOX.split(), capture_output=True, text=True, timeout=60, env={**os.environ, **env}, check=False
    )
    assert asked.stdout.split("\n")[:2] == ["file", "te"], asked.stderr


@pytest.mark.parametrize(
    ("prompts", "options", "said"),
    [
        (5, {}, "continues a text"),
        ([1, 2], {}, "continues a text"),
        (b"one", {}, "continues a text"),
        ("one", {"max_new_tokens": 2.5}, "whole number from 1, not 2.5"),
        ("one", {"max_new_tokens": "3"}, "whole number from 1, not '3'"),
        ("one", {"stops": [1]}, "stops are texts"),
        ("one", {"stops": "x"}, "stops are texts"),
        ("one", {"temprature": 1}, "no option 'temprature'"),
        ("one", {"top_k": 0}, "top_k"),
    ],
)
def test_wrong_arguments_of_generate(prompts: Any, options: dict[str, Any], said: str) -> None:
    """They are refused before the model is asked."""
    torch = pytest.importorskip("torch")
    from neox_interactive.model import Model

    module = torch.nn.Module()
    module.new_cache = None
    run: Any = SimpleNamespace(model=module, tokenizer=object(), plan=None, checkpoint=Path("none"), vocab_size=8)
    with pytest.raises(UsageError, match=said):
        Model(run).generate(prompts, **options)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: neox_core.load(None), "load: folder is a text or a Path, not None"),
        (lambda: neox_core.load(""), "load: folder is a text or a Path, not ''"),
        (lambda: neox_core.load("none", 0), "load: device is a text"),
        (lambda: neox_core.metrics(5), "metrics: run is a text or a Path, not 5"),
        (lambda: neox_core.train("config.yml", ["seed=1"]), "overrides are keys with values, not \\['seed=1'\\]"),
        (lambda: neox_core.train("config.yml", "seed=1"), "overrides are keys with values"),
        (lambda: neox_core.train(None), "a config is a text or a Path, not None"),
        (lambda: neox_core.train(["config.yml", 5]), "a config is a text or a Path, not 5"),
        (lambda: neox_core.train([]), "list of configs is empty"),
        (lambda: neox_core.train({}, run_dir=7), "run_dir is a text or a Path, not 7"),
    ],
)
def test_wrong_arguments_of_the_functions(call: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        call()


def test_logits_are_of_a_text_or_of_ids_that_the_model_has() -> None:
    torch = pytest.importorskip("torch")
    from neox_interactive.model import Model

    run: Any = SimpleNamespace(
        model=torch.nn.Module(), tokenizer=None, plan=None, checkpoint=Path("none"), vocab_size=8
    )
    model = Model(run)
    for wrong, said in (
        (5, "of a text, or of ids in a tensor, not of 5"),
        (torch.zeros(3, dtype=torch.int64), r"int64 \[batch, seq\] ids, not torch.int64 \[3\]"),
        (torch.zeros(1, 3), "not torch.float32"),
        (torch.zeros(1, 0, dtype=torch.int64), r"\[1, 0\]"),
        (torch.tensor([[0, 8]]), "an id is not from 0 to below 8"),
        (torch.tensor([[-1, 0]]), "an id is not from 0 to below 8"),
    ):
        with pytest.raises(UsageError, match=said):
            model.logits(wrong)

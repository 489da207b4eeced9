"""The texts of a run beside the one that the run itself writes with the same weights, at its end."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from neox_author.testing import assert_light, check_evaluator

from neox_core.config.report import ProblemsError
from neox_core.hooks.loader import load_plugins
from neox_core.interpreter import python
from neox_core.plan.resolve import prepare_run

PROMPTS = ["two three ", "five "]
CONFIG: dict[str, Any] = {
    "num-layers": 2,
    "hidden-size": 32,
    "num-attention-heads": 2,
    "seq-length": 32,
    "max-position-embeddings": 32,
    "pos-emb": "rotary",
    "data-path": "text.jsonl",
    "data-impl": "text",
    "tokenizer-type": "CharLevelTokenizer",
    "split": "9,1,0",
    "eval-iters": 1,
    "eval-interval": 2,
    "num-workers": 0,
    "device": "cpu",
    "num_gpus": 1,
    "engine": "plain",
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "Adam", "params": {"lr": 0.01}},
    "lr-decay-style": "constant",
    "train-iters": 8,
    "log-interval": 1,
    "save": "run",
    "save-interval": 8,
    "monitors": ["jsonl"],
    "sample-prompt": PROMPTS[0],
}
SAMPLES = {"evaluators": ["samples"], "samples": {"prompts": PROMPTS, "interval": 4}}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tensor": {"num_gpus": 2, "model-parallel-size": 2},
    "zero-3": {"num_gpus": 2, "engine": "deepspeed", "zero_optimization": {"stage": 3}},
}


def train(folder: Path, **changed: Any) -> Path:
    """The folder of a finished run."""
    folder.mkdir()
    document = json.dumps({"text": "zero one two three four five six seven eight nine ten " * 10})
    (folder / "text.jsonl").write_text(f"{document}\n" * 20)
    (folder / "config.json").write_text(json.dumps(CONFIG | changed))
    words = [*python("neox_core"), "train", "config.json"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "run"


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_listing_is_light() -> None:
    assert_light("neox-samples")


@pytest.mark.ranks
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_last_text_is_that_of_the_end_and_training_is_not_disturbed(tmp_path: Path, layout: str) -> None:
    plain, sampled = train(tmp_path / "a", **LAYOUTS[layout]), train(tmp_path / "b", **LAYOUTS[layout], **SAMPLES)
    found = rows(sampled / "samples.jsonl")
    assert [each["step"] for each in found] == [4, 4, 8, 8]
    assert all(each["sample"].startswith(prompt) for each, prompt in zip(found, 2 * PROMPTS, strict=True))
    ends = [each["said"] for each in rows(sampled / "messages.jsonl") if each.get("said", "").startswith("sample:")]
    assert ends == [f"sample:\n{found[2]['sample']}"]
    assert found[0]["sample"] != found[2]["sample"]
    losses = [[each["loss"] for each in rows(run / "metrics.jsonl") if "loss" in each] for run in (plain, sampled)]
    assert losses[0] == losses[1]
    assert not (plain / "samples.jsonl").exists()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"samples": {}}, "samples.prompts: is required"),
        ({"samples": {"prompts": ["a"] * 17}}, "samples.prompts"),
        ({"tokenizer-type": None, "padded-vocab-size": 256, "sample-prompt": None}, "tokenizer.type: is required"),
    ],
)
def test_what_cannot_work_is_refused_before_the_start(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | SAMPLES | {"data-path": str(tmp_path)} | changed))
    with pytest.raises(ProblemsError, match=said):
        prepare_run([tmp_path / "config.json"], catalog=load_plugins(), start=False)


def test_it_keeps_the_contract() -> None:
    check_evaluator(load_plugins(), "samples")

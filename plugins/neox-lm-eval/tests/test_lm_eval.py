"""The harness asks the same model in a run, in `neox eval`, and as its own backend `hf` for the exported checkpoint.

What needs lm-evaluation-harness, which is large, is skipped where it is not installed.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from neox_author.testing import assert_light

harness = pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm-evaluation-harness is not installed")
exported = pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate, which its backend hf needs, is not")

NEOX = [sys.executable, "-m", "neox_core"]
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"]
TASKS = "counting_choice", "counting_text", "counting_on", "counting_next"

CONFIG = """
num-layers: 2
hidden-size: 64
num-attention-heads: 2
seq-length: 32
max-position-embeddings: 48
pos-emb: rotary
activation: swiglu
hidden-dropout: 0
attention-dropout: 0
data-path: data/data
data-impl: mmap
tokenizer-type: GPT2BPETokenizer
vocab-file: data/vocab.json
merge-file: data/merges.txt
split: 9,1,0
eval-iters: 1
eval-interval: 40
num-workers: 0
device: cpu
train_micro_batch_size_per_gpu: 8
optimizer: {type: Adam, params: {lr: 0.01}}
lr-decay-style: constant
train-iters: 80
log-interval: 40
save-interval: 80
monitors: [jsonl]
evaluators: [lm_eval]
"""
CONFIG += f"lm_eval: {{tasks: [{', '.join(TASKS)}], task_folder: tasks, interval: 80, batch_size: 3}}\n"
TWO: dict[str, Any] = {"num_gpus": 2}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tensor": {**TWO, "engine": "plain", "model-parallel-size": 2},
    "data": {**TWO, "engine": "plain"},
    "sequence": {**TWO, "engine": "plain", "model-parallel-size": 2, "sequence-parallel": True},
    "zero-3": {**TWO, "zero_optimization": {"stage": 3}},
    "pipe": {**TWO, "pipe-parallel-size": 2},
}

TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: {type}
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
"""
CHOICE = """
doc_to_choice: choices
target_delimiter: ""
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
"""
TEXT = """
metric_list:
  - {metric: word_perplexity, aggregation: weighted_perplexity, higher_is_better: false}
  - {metric: bits_per_byte, aggregation: bits_per_byte, higher_is_better: false}
"""
NEXT = """
fewshot_delimiter: " "
target_delimiter: ""
metric_list:
  - {metric: perplexity, aggregation: perplexity, higher_is_better: false}
"""
ON = """
generation_kwargs: {until: [" e"], max_gen_toks: 18, do_sample: false}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true}
"""


def count(first: int, words: int) -> str:
    return " ".join(WORDS[(first + place) % 12] for place in range(words))


def write_tasks(folder: Path) -> None:
    """A task of each kind of question; the model has learnt some of the answers."""
    folder.mkdir()
    made = {
        "counting_choice": (
            "multiple_choice",
            CHOICE,
            [
                {
                    "question": count(at, 5),
                    "choices": [" " + count(at + 5 + wrong, 2) for wrong in (0, 3, 7)],
                    "answer": at % 2 and 2,
                }
                for at in range(12)
            ],
        ),
        "counting_text": (
            "loglikelihood_rolling",
            TEXT,
            [{"question": "", "answer": count(at, 20 + 9 * at) + " and others"} for at in range(7)],
        ),
        "counting_on": (
            "generate_until",
            ON,
            [{"question": count(at, 9), "answer": f" {count(at + 9, 12)}".partition(" e")[0]} for at in range(12)],
        ),
        "counting_next": (
            "loglikelihood",
            NEXT,
            [{"question": count(at, 7), "answer": f" {count(at + 7, 2)}"} for at in range(12)],
        ),
    }
    for name, (kind, more, documents) in made.items():
        file = folder / f"{name}.jsonl"
        file.write_text("\n".join(map(json.dumps, documents)))
        (folder / f"{name}.yaml").write_text(TASK.format(name=name, file=file, type=kind) + more)


def neox(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub"), **env}
    return subprocess.run(
        [*NEOX, *arguments], cwd=folder, capture_output=True, text=True, timeout=300, env=environ, check=False
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and tasks."""
    folder = tmp_path_factory.mktemp("counting")
    (folder / "text.jsonl").write_text("\n".join([json.dumps({"text": " ".join(WORDS * 250)})] * 10))
    (folder / "config.yml").write_text(CONFIG)
    write_tasks(folder / "tasks")
    prepared = neox(folder, "data", "prepare", "text.jsonl", "--out", "data", "--vocab-size", "300")
    assert prepared.returncode == 0, prepared.stderr
    return folder


def trained(place: Path, layout: str, save: str = "", **settings: int) -> dict[str, float]:
    """What a run in a layout logs of the tasks after its last step. settings: of lm_eval."""
    save = save or layout
    sets = LAYOUTS[layout] | {f"lm_eval.{name}": value for name, value in settings.items()}
    options = [f"--set={key}={json.dumps(value)}" for key, value in sets.items()]
    run = neox(place, "train", "config.yml", f"--set=save={save}", *options)
    assert run.returncode == 0, run.stdout + run.stderr
    lines = map(json.loads, (place / save / "metrics.jsonl").read_text().splitlines())
    found = [{name: value for name, value in line.items() if name.startswith("counting_")} for line in lines]
    assert [bool(each) for each in found if each] == [True]  # at step 80, not at step 40
    return next(each for each in found if each)


def evaluated(place: Path, save: str, *options: str) -> dict[str, float]:
    tasks = ("--task-folder", "tasks", "--tasks", ",".join(TASKS))
    done = neox(place, "eval", "--load", save, *tasks, *options, "--json")
    assert done.returncode == 0, done.stderr
    scores = json.loads(done.stdout)["scores"]
    return {f"{task}_{metric}": value for task, metrics in scores.items() for metric, value in metrics.items()}


def of_hf(place: Path, save: str) -> Callable[..., dict[str, float]]:
    """What the harness itself finds for the exported model, in this process: a call takes settings of the harness."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    done = neox(place, "checkpoint", "export-hf", save, "--out", f"{save}-hf")
    assert done.returncode == 0, done.stderr
    model = HFLM(
        pretrained=str(place / f"{save}-hf"), device="cpu", dtype="float32", batch_size=4, trust_remote_code=True
    )
    tasks = TaskManager(include_path=str(place / "tasks"), include_defaults=False)

    def scores(**settings: int) -> dict[str, float]:
        found = lm_eval.simple_evaluate(
            model, tasks=[*TASKS], task_manager=tasks, bootstrap_iters=0, log_samples=False, **settings
        )
        assert found is not None
        return {
            f"{task}_{name.removesuffix(',none')}": value
            for task, values in found["results"].items()
            for name, value in values.items()
            if name.endswith(",none") and isinstance(value, float)
        }

    return scores


def test_listing_is_light() -> None:
    assert_light("neox-lm-eval")


@harness
@exported
def test_scores_are_those_of_the_exported_model(place: Path) -> None:
    """On four tasks: of a run on two tensor-parallel ranks, of its checkpoint, and of transformers, to 1e-6."""
    in_the_run = trained(place, "tensor")
    after = evaluated(place, "tensor")
    by_transformers = of_hf(place, "tensor")()
    names = {
        "choice_acc",
        "choice_acc_norm",
        "text_word_perplexity",
        "text_bits_per_byte",
        "on_exact_match",
        "next_perplexity",
    }
    assert set(by_transformers) == {f"counting_{name}" for name in names}
    assert after == pytest.approx(by_transformers, rel=1e-6)
    assert in_the_run == pytest.approx(by_transformers, rel=1e-6)
    assert 0 < after["counting_choice_acc"] < 1, after
    assert 0 < after["counting_on_exact_match"] < 1


@harness
@exported
def test_fewer_documents_with_examples_before_them(place: Path) -> None:
    """In a run and of its checkpoint, as the harness has it for the exported model; each setting changes a score."""
    in_the_run = trained(place, "data", "fewer", limit=5, num_fewshot=3)
    by_transformers = of_hf(place, "fewer")
    both = by_transformers(limit=5, num_fewshot=3)
    assert in_the_run == pytest.approx(both, rel=1e-6)
    assert evaluated(place, "fewer", "--limit", "5", "--num-fewshot", "3") == pytest.approx(both, rel=1e-6)
    assert by_transformers(limit=5) != pytest.approx(both, rel=1e-6)
    assert by_transformers(num_fewshot=3) != pytest.approx(both, rel=1e-6)


@harness
@pytest.mark.parametrize("layout", ["data", "sequence", "zero-3", "pipe"])
def test_every_layout_has_the_scores_of_its_checkpoint(place: Path, layout: str) -> None:
    assert trained(place, layout) == pytest.approx(evaluated(place, layout), rel=1e-6)


@harness
def test_mistakes_are_one_error(place: Path) -> None:
    kept = [line for line in CONFIG.splitlines() if not line.startswith(("lm_eval", "evaluators"))]
    (place / "without.yml").write_text("\n".join(kept))
    short = ("train-iters=4", "save-interval=4", "eval-interval=4", "log-interval=4")
    sets = [f"--set={each}" for each in (*short, "save=data-only", "engine=plain", "num_gpus=1")]
    run = neox(place, "train", "without.yml", *sets)
    assert run.returncode == 0, run.stderr
    asked = ("eval", "--load", "data-only")
    (place / "broken").mkdir()
    (place / "broken" / "task.yaml").write_text("task: odd\ndataset_path: json\noutput_type: [\x1b[2J\n")
    cases = {
        ("--tasks", "counting_chice", "--task-folder", "tasks"): (2, "did you mean 'counting_choice'"),
        ("--tasks", "piqa"): (4, "task piqa: its dataset is not on this machine and cannot be downloaded"),
        ("--tasks", "odd", "--task-folder", "broken"): (2, "no task 'odd'"),
        ("--tasks", "a,,b"): (2, "a name is empty"),
    }
    for arguments, (code, said) in cases.items():
        done = neox(place, *asked, *arguments)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert said in done.stderr
        assert done.stderr.count("error:") == 1
        assert "Traceback" not in done.stderr
        assert "\x1b" not in done.stderr


def test_a_config_without_tasks_or_tokenizer_is_refused(tmp_path: Path) -> None:
    kept = [line for line in CONFIG.splitlines() if not line.startswith(("lm_eval", "tokenizer", "vocab", "merge"))]
    (tmp_path / "config.yml").write_text("\n".join([*kept, "padded-vocab-size: 64"]))
    done = neox(tmp_path, "config", "check", "config.yml")
    assert done.returncode == 2
    assert "lm_eval.tasks: is required" in done.stderr
    assert "tokenizer-type: is required" in done.stderr


def test_without_the_harness_an_error_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text("import sys\nsys.modules['lm_eval'] = None\n")
    hidden = {"PYTHONPATH": f"{tmp_path / 'hidden'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = neox(tmp_path, "eval", "--load", "x", "--tasks", "piqa", **hidden)
    assert done.returncode == 3
    assert "pip install lm_eval" in done.stderr

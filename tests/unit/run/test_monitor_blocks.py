"""Which blocks of a config switch a monitor on, with the plugins that are installed."""

from pathlib import Path

import pytest

from neox_core.config.report import ProblemsError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import RunPlan, to_json

CONFIG = """
num-layers: 2
hidden-size: 32
num-attention-heads: 2
seq-length: 32
max-position-embeddings: 32
padded-vocab-size: 64
data-path: nowhere
device: cpu
train_micro_batch_size_per_gpu: 4
train-iters: 10
optimizer: {type: Adam, params: {lr: 0.01}}
"""


def plan_of(tmp_path: Path, text: str) -> RunPlan:
    (tmp_path / "c.yml").write_text(CONFIG + text)
    return prepare_run([tmp_path / "c.yml"], start=False, catalog=load_plugins()).plan


def names(plan: RunPlan) -> list[str]:
    return [each.name for each in plan.monitors]


@pytest.mark.parametrize("name", ["tensorboard", "csv_monitor", "wandb", "comet"])
def test_a_block_switches_its_monitor_on(tmp_path, name):
    assert names(plan_of(tmp_path, "")) == ["console", "jsonl"]
    assert names(plan_of(tmp_path, f"{name}: {{enabled: false}}")) == ["console", "jsonl"]
    assert names(plan_of(tmp_path, f"{name}: {{enabled: true}}")) == ["console", "jsonl", name]
    assert names(plan_of(tmp_path, f"{name}: {{enabled: true}}\nmonitors: [{name}]")) == [name]
    assert names(plan_of(tmp_path, f"monitors: [{name}]")) == [name]


def test_the_older_key_of_gpt_neox_switches_tensorboard_on(tmp_path):
    plan = plan_of(tmp_path, "tensorboard-dir: events")
    assert names(plan)[-1] == "tensorboard"
    assert plan.monitors[-1].settings["tensorboard_dir"] == "events"
    with pytest.raises(ProblemsError, match=r"tensorboard\.job_name: does nothing with tensorboard-dir"):
        plan_of(tmp_path, "tensorboard-dir: events\ntensorboard: {job_name: a}")


def test_an_api_key_is_refused_and_shown_nowhere(tmp_path):
    with pytest.raises(ProblemsError, match=r"comet.api_key: is a secret") as caught:
        plan_of(tmp_path, "comet: {enabled: true, api_key: geheim}")
    assert "geheim" not in str(caught.value)
    plan = plan_of(tmp_path, "comet: {enabled: true, api_key: null}")
    assert plan.monitors[-1].settings["comet"]["api_key"] is None
    assert "geheim" not in to_json(plan)


@pytest.mark.parametrize(("key", "held"), [("a" * 31, False), ("a1" * 16, True), ("a" * 50, True), ("a" * 51, False)])
def test_an_experiment_key_is_32_to_50_letters_and_digits(tmp_path, key, held):
    if held:
        assert plan_of(tmp_path, f"comet: {{enabled: true, experiment_key: {key}}}")
    else:
        with pytest.raises(ProblemsError, match=r"comet\.experiment_key"):
            plan_of(tmp_path, f"comet: {{enabled: true, experiment_key: {key}}}")

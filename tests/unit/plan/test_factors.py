"""Factors of parameters that the model does not have are found before a rank starts, whichever engine has them."""

from pathlib import Path
from typing import Any

import pytest

from neox_core.config.report import ProblemsError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run

MODEL = """
num-layers: 2
hidden-size: 32
num-attention-heads: 4
seq-length: 16
max-position-embeddings: 16
make-vocab-size-divisible-by: 8
tokenizer-type: CharLevelTokenizer
train-iters: 2
lr-decay-iters: 2
train-micro-batch-size-per-gpu: 1
optimizer: {type: Adam, params: {lr: 0.001}}
"""


def prepare(folder: Path, *changes: str) -> Any:
    (folder / "c.yml").write_text(MODEL)
    sets = [f"data-path={folder}/text.txt", "data-impl=text", "num-gpus=1", *changes]
    (folder / "text.txt").write_text("some text\n")
    machine = Machine(0, 1)
    return prepare_run([folder / "c.yml"], sets, catalog=load_plugins(), machine=machine, start=False, checked=True)


@pytest.mark.parametrize("engine", ["plain", "deepspeed"])
@pytest.mark.parametrize("key", ["lr-scales", "gradient-norm-counts"])
def test_a_pattern_that_no_parameter_matches_is_an_error(tmp_path: Path, key: str, engine: str) -> None:
    with pytest.raises(ProblemsError) as caught:
        prepare(tmp_path, f"engine={engine}", f"{key}=[['layers.2.*', 2.0], ['layers.1.mlp.*', 2.0]]")
    (said,) = [each for each in caught.value.problems if each.severity == "error"]
    assert (said.key, said.message) == (key, "no parameter of the model has a name like 'layers.2.*'")
    assert said.hint == "a name is such as 'final_norm.bias'"


@pytest.mark.parametrize("engine", ["plain", "deepspeed"])
def test_a_pattern_that_a_parameter_matches_is_not(tmp_path: Path, engine: str) -> None:
    plan = prepare(tmp_path, f"engine={engine}", "lr-scales=[['layers.*.mlp.down.bias', 2.0]]").plan
    assert plan.engine["lr_scales"] == [["layers.*.mlp.down.bias", 2.0]]

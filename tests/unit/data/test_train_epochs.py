"""`train_epochs` of GPT-NeoX: the number of steps and the order of samples that its data loader gives."""

from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from neox_core.config.report import ProblemsError
from neox_core.data.samples import open_counted
from neox_core.errors import DataError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run

SEQ, DOCUMENTS = 16, 37
BASE = """
num-layers: 1
hidden-size: 8
num-attention-heads: 1
seq-length: 16
max-position-embeddings: 16
padded-vocab-size: 4096
device: cpu
num_gpus: 1
engine: plain
optimizer: {type: Adam, params: {lr: 1.0e-3}}
train_batch_size: 8
"""
CATALOG = load_plugins()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents in which no two tokens are alike, so that a sample is known by its first."""
    folder = tmp_path_factory.mktemp("epochs")
    entry = CATALOG.registry.find("data backend", "mmap")
    draw, first = np.random.default_rng(0), 0
    for name in ("tokens", "more"):
        writer = entry.load()(entry.component.settings()).create(folder / name, 4096)
        for _ in range(DOCUMENTS):
            length = int(draw.integers(1, 60))
            writer.add_document(list(range(first, first + length)))
            first += length
        writer.close()
    (folder / "base.yml").write_text(BASE)
    return folder


def planned(data: Path, *sets: str) -> Any:
    return prepare_run([data / "base.yml"], sets, catalog=CATALOG, start=False).plan


def firsts(plan: Any, count: int) -> list[int]:
    samples, row, found = open_counted(plan, "train"), np.empty(SEQ + 1, dtype=np.int64), []
    for index in range(count):
        samples.read(index, row)
        found.append(int(row[0]))
    return found


def sizes_of(prefix: Path) -> list[int]:
    entry = CATALOG.registry.find("data backend", "mmap")
    return [int(each) for each in entry.load()(entry.component.settings()).open(prefix).sizes]


@pytest.mark.parametrize(("epochs", "accumulation"), [(1, 1), (1, 2), (3, 1), (3, 2), (5, 4)])
@pytest.mark.parametrize("split", ["90,10,0", "100,0,0", "50,30,20"])
def test_steps_and_order_are_those_of_the_loader(epochs: int, accumulation: int, split: str, data: Path) -> None:
    where = f"data-path={data}/tokens", f"split={split}"
    plan = planned(data, *where, f"train_epochs={epochs}", f"gradient_accumulation_steps={accumulation}")
    parts = [float(part) / 100 for part in split.split(",")]
    counts = [round(part * DOCUMENTS) for part in parts]
    training = counts[0] - (sum(counts) - DOCUMENTS)
    pass_samples = (sum(sizes_of(data / "tokens")[:training]) - 1) // SEQ
    # a DataLoader that drops the last micro-batch, all ranks together; its length in GPT-NeoX's update_iterations
    micro_batch = 8 // accumulation
    loader = [range(first, first + micro_batch) for first in range(0, pass_samples - micro_batch + 1, micro_batch)]
    steps = len(loader) * epochs // accumulation
    assert plan.train.train_iters == steps
    order = firsts(planned(data, *where, "train-iters=1"), pass_samples)  # that of one pass, compared with GPT-NeoX's
    wanted = list(chain(*islice(cycle(loader), steps * accumulation)))
    assert firsts(plan, steps * 8) == [order[index] for index in wanted]


def test_one_training_dataset_is_read_whole(data: Path) -> None:
    paths = f'train-data-paths=["{data}/tokens"]', f'valid-data-paths=["{data}/more"]'
    plan = planned(data, *paths, "train_epochs=2", "lr_decay_fraction=0.5", "lr-decay-style=linear")
    steps = (sum(sizes_of(data / "tokens")) - 1) // SEQ // 8 * 2
    assert (plan.train.train_iters, plan.optim.decay_steps) == (steps, steps // 2)
    order = firsts(planned(data, f"data-path={data}/tokens", "split=100,0,0", "train-iters=1"), steps * 4)
    assert firsts(plan, steps * 8) == order * 2


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("train_epochs=0",), "must be a whole number above 0, not 0"),
        (("train_epochs=1.5",), "must be a whole number above 0, not 1.5"),
        (("train_epochs=1", "train-iters=5"), "contradicts train-iters"),
        (("train_epochs=1", "data-path={data}/absent"), "absent.idx cannot be read: No such file"),
        (("train_epochs=1", "data-path={data}/base.yml"), "base.yml.idx cannot be read"),
        (("train_epochs=1", "data-path={data}/torn"), "torn.idx ends within the sizes"),
        (("train_epochs=1", "data-path={data}/text"), "text.idx is not the index of an mmap dataset"),
        (("train_epochs=1", "train_batch_size=null", "train_micro_batch_size_per_gpu=4"), "needs numbers for"),
        (("train_epochs=1", "train_batch_size=100000"), "do not fill a batch"),
        (
            ("train_epochs=1", "rampup-batch-size=[2, 2, 64]"),
            "contradicts rampup_batch_size, which starts with smaller",
        ),
        (("train_epochs=1", "elasticity={enabled: true}"), "contradicts elasticity.enabled, which chooses the batch"),
        (("train_epochs=1", "weight_by_num_documents=true"), "contradicts weight_by_num_documents"),
        (
            ("train_epochs=1", 'train-data-paths=["{data}/tokens", "{data}/more"]', "data-path=null"),
            "GPT-NeoX mixes several in equal shares",
        ),
    ],
)
def test_what_cannot_be_counted_is_one_error(sets: tuple[str, ...], said: str, data: Path) -> None:
    (data / "torn.idx").write_bytes((data / "tokens.idx").read_bytes()[:60])
    (data / "text.idx").write_text("no index at all, but a text that is long enough")
    with pytest.raises(ProblemsError) as caught:
        planned(data, f"data-path={data}/tokens", *(each.replace("{data}", str(data)) for each in sets))
    assert said in str(caught.value)
    assert "train-iters: is required" not in str(caught.value)


def test_a_pass_is_over_one_dataset(data: Path) -> None:
    paths = f'train-data-paths=["{data}/tokens", "{data}/more"]', f'valid-data-paths=["{data}/more"]'
    with pytest.raises(ProblemsError) as caught:
        planned(data, *paths, "train-iters=4", "samples-per-pass=8")
    assert [each.message for each in caught.value.problems] == ["is for one dataset, and train-data-paths has 2"]


def test_a_pass_that_is_shorter_than_planned_is_an_error(data: Path) -> None:
    plan = planned(data, f"data-path={data}/tokens", "train-iters=4", "samples-per-pass=5000")
    with pytest.raises(DataError, match=r"samples-per-pass is 5,000, and a pass over .* has \d+ samples"):
        open_counted(plan, "train")

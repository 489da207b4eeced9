"""Warnings before a run: keys that look for the end of a document where no document has one; a missing compiler."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from neox_author.testing import build, load_only

from neox_core.config.problem import Problem
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run

KEYS = ("reset-position-ids", "reset-attention-mask", "eod-mask-loss")
BASE = {
    "num-layers": 1, "hidden-size": 8, "num-attention-heads": 1, "seq-length": 16, "max-position-embeddings": 16,
    "data-impl": "mmap", "tokenizer-type": "CharLevelTokenizer", "padded-vocab-size": 512, "train-iters": 2,
    "train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "Adam", "params": {"lr": 0.1}}, "device": "cpu",
}  # fmt: skip
EOD = 0
"""Of CharLevelTokenizer."""


def written(prefix: Path, documents: Sequence[Sequence[int]]) -> str:
    entry = load_only("neox-data-indexed").find("data backend", "mmap")
    writer = entry.load()(build(entry)).create(prefix, 512)
    for document in documents:
        writer.add_document(document)
    writer.close()
    return str(prefix)


def told(folder: Path, about: str = "does nothing with", **keys: object) -> list[Problem]:
    (folder / "c.json").write_text(json.dumps(BASE | {key.replace("_", "-"): value for key, value in keys.items()}))
    found = prepare_run([folder / "c.json"], catalog=load_plugins(), start=False, checked=True).notes
    return [each for each in found if about in each.message]


@pytest.mark.parametrize("key", KEYS)
def test_a_dataset_without_ends_is_a_warning(tmp_path: Path, key: str) -> None:
    plain = written(tmp_path / "plain", [[5, 6, 7]] * 30)
    ended = written(tmp_path / "ended", [[5, 6, EOD]] * 30)
    packed = written(tmp_path / "packed", [[5, EOD, 6]] * 30)
    (problem,) = told(tmp_path, data_path=plain, **{key: True})
    assert (problem.severity, problem.key) == ("warning", key)
    assert f"{plain}: no document there ends with the token {EOD} of CharLevelTokenizer" in problem.message
    assert told(tmp_path, data_path=plain) == []
    for prefix in (ended, packed):
        assert told(tmp_path, data_path=prefix, **{key: True}) == []


def test_of_several_datasets_those_without_are_named(tmp_path: Path) -> None:
    plain, ended = written(tmp_path / "plain", [[5, 6]] * 30), written(tmp_path / "ended", [[5, EOD]] * 30)
    named = {"train_data_paths": [ended, plain], "valid_data_paths": [ended], "eod_mask_loss": True}
    (problem,) = told(tmp_path, **named)
    assert problem.message.startswith(f"does nothing with {plain}: ")


def test_a_long_document_is_looked_at_where_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neox_gpt.config.ends.LOOKED_AT", 4)
    long = written(tmp_path / "long", [[], [5] * 30, [5] * 30 + [EOD]])
    assert told(tmp_path, data_path=long, eod_mask_loss=True) == []
    monkeypatch.setattr("neox_gpt.config.ends.MOST_DOCUMENTS", 2)
    assert len(told(tmp_path, data_path=long, eod_mask_loss=True)) == 1


def test_what_cannot_be_read_is_left_to_the_ranks(tmp_path: Path) -> None:
    broken = written(tmp_path / "broken", [[5, 6]] * 30)
    (tmp_path / "broken.bin").write_bytes(b"")
    assert told(tmp_path, data_path=broken, eod_mask_loss=True) == []


def test_that_there_is_no_compiler_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefix = written(tmp_path / "tokens", [[5, EOD]] * 30)
    assert told(tmp_path, "compiler", data_path=prefix) == []
    monkeypatch.setenv("PATH", str(tmp_path))
    (note,) = told(tmp_path, "compiler", data_path=prefix)
    assert (note.severity, note.message[:43]) == ("note", "there is no C++ compiler (c++, g++, clang++")

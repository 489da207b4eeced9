"""A plan as rows: words for what is made of several values, and no row for what it is made of."""

import json
from pathlib import Path
from typing import Any

import pytest
from neox_reference.flat import flat, in_words
from neox_reference.origins import find_origins, section_rows

from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import to_plain

MODEL = {
    "num-layers": 2,
    "hidden-size": 64,
    "num-attention-heads": 4,
    "seq-length": 64,
    "max-position-embeddings": 64,
    "padded-vocab-size": 128,
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
    "train-iters": 10,
    "norm": "rmsnorm",
    "rmsnorm-fusion": True,
    "sparsity": "all",
    "sparse_attention": {"mode": "bslongformer", "global_block_indices": [0, 2]},
    "train-data-paths": ["a", "b"],
    "train-data-weights": [0.25, 2],
    "valid-data-paths": ["a"],
    "checkpoint-activations": True,
    "csv_monitor": {"enabled": True, "job_name": "mine"},
    "monitors": ["console"],
    "autotuning": {"enabled": False, "fast": False, "tuner_type": "random"},
}


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[str, str]]:
    """Path -> (value, origin) of a config with every kind of part, as if on two hosts with every library."""
    monkeypatch.setattr("neox_core.hooks.component.find_spec", lambda name: name)
    (tmp_path / "c.json").write_text(json.dumps(MODEL))
    resolved = prepare_run([tmp_path / "c.json"], catalog=load_plugins(), start=False, cluster="2x4")
    values = flat(to_plain(resolved.plan))
    origins = find_origins(resolved, "2x4")
    assert values.keys() == origins.keys()
    found = {path: (in_words(values[path]), origin) for path, origin in origins.items()}
    for section in section_rows(resolved):
        found |= {key: (in_words(value), section.origins[key]) for key, value in section.values.items()}
    return found


def test_rows_are_words_and_plain_values(rows: dict[str, tuple[str, str]]) -> None:
    for path, (value, _) in rows.items():
        assert "(kind=" not in value, path
        assert "{" not in value, path
        assert "Plan(" not in value, path
        assert len(value) < 200, path


def test_parts_and_their_settings_have_rows(rows: dict[str, tuple[str, str]]) -> None:
    assert rows["model.norm"][0] == "rmsnorm (neox-norms 0.1.0)"
    value, origin = rows["model.kernels.rms_norm"]
    assert value == "fused: rms_norm.triton (neox-triton 0.1.0)"
    assert "c.json" in origin
    assert rows["model.layouts"][0] == "[bslongformer (neox-sparse-attention 0.1.0)]"
    assert rows["model.layouts.bslongformer.settings.global_block_indices"][0] == "[0, 2]"
    assert rows["model.recompute.layers"][0] == "1"
    assert rows["data.train"][0] == "[a x 0.25, b x 2.0]"
    assert rows["cluster.hosts"][0] == "[host-0 x 4, host-1 x 4]"
    for path in ("hosts", "hosts.0.name", "device", "threads_per_rank"):
        origins = {origin for name, (_, origin) in rows.items() if name.startswith(f"cluster.{path}")}
        assert all("--on 2x4" in origin and "this machine" not in origin for origin in origins), path


def test_monitors_and_sections_of_plugins_have_rows(rows: dict[str, tuple[str, str]]) -> None:
    assert rows["monitors"][0].startswith("[console (neox-monitors 0.1.0), csv_monitor (")
    value, origin = rows["monitors.csv_monitor.settings.csv_monitor.job_name"]
    assert value == '"mine"'
    assert "c.json" in origin
    assert rows["autotuning.fast"][0] == "false"
    assert "c.json" in rows["autotuning.fast"][1]
    assert rows["autotuning.tuner_num_trials"][1] == "default"


@pytest.mark.parametrize("value", [None, [], {}, [[1]], [{}], [{"op": 1, "asked": 2, "offers": [3]}], [1, "x", None]])
def test_whatever_a_file_holds_has_rows(value: Any) -> None:
    deep = value
    for _ in range(500):
        deep = {"a": deep}
    for each in (value, {"x": value}, deep):
        assert all(isinstance(in_words(inner), str) for inner in flat(each).values())


def test_blocks_of_a_stored_plan_whose_parts_are_no_lists() -> None:
    kernel = {"op": "norm", "asked": "auto", "offers": 3}
    values = flat({"kernels": [kernel], "hosts": [{"name": "a", "slots": 2, "devices": 5}]})
    assert values == {"kernels.norm": "auto: the reference", "hosts": "[a x 2]"}

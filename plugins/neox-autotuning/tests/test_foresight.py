"""What `neox plan` says of the trials of `neox tune`."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from neox_autotuning.foresight import Foresight, foresee
from neox_autotuning.settings import AutotuningBlock
from neox_autotuning.space import Space, Trial
from neox_autotuning.trial import Bench, Result
from neox_autotuning.tried import Tried

from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import Resolved, prepare_run

SHAPE: dict[str, Any] = {
    "num-layers": 2,
    "hidden-size": 32,
    "num-attention-heads": 2,
    "seq-length": 16,
    "max-position-embeddings": 16,
    "padded-vocab-size": 64,
    "data-path": "none",
    "device": "cpu",
    "num_gpus": 2,
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
    "train-iters": 10,
}
SPACE = Space((0, 1), (0, 1), 1, data_parallel=2, accumulation=3, per_rank=None)


def resolved(folder: Path, **more: Any) -> Resolved:
    (folder / "c.json").write_text(json.dumps(SHAPE | more))
    return prepare_run([folder / "c.json"], catalog=load_plugins(), start=False)


def test_a_trial_is_told_what_the_plan_of_its_keys_is_told(tmp_path: Path) -> None:
    seen = foresee(resolved(tmp_path), SPACE, AutotuningBlock(), [1, 4])
    for stage in (0, 1):
        keys = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3}
        planned = resolved(tmp_path, **keys, zero_optimization={"stage": stage})
        assert planned.memory is not None
        trial = Trial("", stage, 4, keys)
        assert seen.memory(trial) == planned.memory.total / 2**30
        assert seen.value(trial) is None
        assert seen.expect(trial) == 0
    assert seen.samples == {1: 6, 4: 24}
    assert seen.room is not None
    assert "no time of a step for this device" in seen.note


def test_without_the_plan_nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "neox_plan.api", None)
    seen = foresee(resolved(tmp_path), SPACE, AutotuningBlock(), [1])
    assert "neox-plan" in seen.note
    trial = Trial("", 0, 1, {"train_micro_batch_size_per_gpu": 1})
    assert (seen.expect(trial), seen.memory(trial), seen.too_large(trial)) == (0, None, "")


def test_what_cannot_fit_is_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = foresee(resolved(tmp_path), SPACE, AutotuningBlock(), [1, 4])
    trials = [Trial(f"z0_mbs{size}", 0, size, {"train_micro_batch_size_per_gpu": size}) for size in (1, 4)]
    small, large = (whole.memory(trial) or 0 for trial in trials)
    seen: Foresight = evolve(whole, room=2**30 * (small + large) / 2.2)
    ran: list[str] = []

    def run(bench: Bench, trial: Trial) -> Result:
        ran.append(trial.name)
        return Result(trial.name, trial.sets, "throughput", (3, 5), 2.0, memory_gib=0.5)

    monkeypatch.setattr(Bench, "run", run)
    bench = Bench((), (), frozenset(), AutotuningBlock(), tmp_path, tmp_path)
    tried = Tried(bench, seen, as_json=False)
    own = Trial("baseline", 0, 4, {})  # the config as it is always runs
    assert [tried.measure(trial) for trial in (own, *trials)] == [2.0, 2.0, None]
    assert ran == ["baseline", "z0_mbs1"]
    said = capsys.readouterr().out.splitlines()
    assert said[1] == f"z0_mbs1: 2 samples/s, 0% slower; took 0.50 GiB; told {small:.2f} GiB"
    assert said[2].startswith("z0_mbs4: left out: is told to take 0.0 GiB a rank, of which 0.0 GiB can be filled")
    assert [trial.get("left_out", "") != "" for trial in tried.trials] == [False, False, True]

"""Checkpoints of a real engine in this process: what is written, what is resumed, and what is refused."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from attrs import evolve
from checkpoint_runs import LINEAR, Run, edit, resuming, with_checkpoint

from neox_core.checkpoint.checkpointer import find_checkpoint, read_weights
from neox_core.checkpoint.read import CheckpointReader
from neox_core.errors import CheckpointError, PluginError
from neox_core.plan.runfile import ComponentRef, RunPlan
from neox_core.plan.stored.state import TrainState

pytestmark = pytest.mark.usefixtures("process_group")


def test_what_a_checkpoint_holds(plan: RunPlan) -> None:
    folder = Run(plan).steps(2).save()
    assert sorted(path.name for path in folder.iterdir()) == [
        "manifest.json",
        "rank-00000.optimizer.safetensors",
        "rank-00000.rng.safetensors",
        "rank-00000.weights.safetensors",
        "run.json",
        "state.json",
    ]
    sha256 = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    assert (folder.parent / "latest").read_text() == f"step-00000002\n{sha256}  step-00000002/manifest.json\n"
    reader = CheckpointReader(folder)
    reader.verify()
    assert set(reader.shapes("weight")) == {"embed.weight", "norm.weight", "norm.bias", "out.weight"}
    assert set(reader.shapes("buffer")) == {"seen"}
    assert reader.states("norm.bias") == ["step", "exp_avg", "exp_avg_sq"]
    state = json.loads((folder / "state.json").read_text())
    samples = {"data_hash": None, "data_rounds": [], "data_contents": {}, "data_position": None}
    samples |= {"interventions": [], "callbacks": {}}
    assert state["state"] == {"step": 2, "consumed_samples": 2, "consumed_tokens": 16, **samples}


def test_weights_by_another_reader(plan: RunPlan) -> None:
    """The files are what the safetensors library says they are."""
    from safetensors.torch import load_file

    run = Run(plan).steps(1)
    stored = load_file(run.save() / "rank-00000.weights.safetensors")
    for name, weight in run.weights().items():
        assert torch.equal(stored[f"weight/{name}"], weight)
    assert all(
        torch.equal(weight, run.weights()[name]) for name, weight in read_weights(Path(plan.checkpoint.save)).items()
    )


def test_goes_on_to_the_same_bits(plan: RunPlan) -> None:
    through = Run(plan).steps(3)
    through.save()
    through.steps(3)
    resumed = Run(resuming(plan))
    resumed.load()
    resumed.steps(3)
    assert resumed.losses == through.losses[3:]
    assert all(torch.equal(weight, through.weights()[name]) for name, weight in resumed.weights().items())


def test_finetune_takes_weights_only(plan: RunPlan) -> None:
    first = Run(plan).steps(3)
    first.save()
    run = Run(resuming(plan, finetune=True))
    generators = torch.get_rng_state()
    assert run.load().state == TrainState()
    assert all(torch.equal(weight, first.weights()[name]) for name, weight in run.weights().items())
    assert not run.engine.optimizer.state
    assert torch.equal(torch.get_rng_state(), generators)


def test_no_load_optim_and_no_load_rng(plan: RunPlan) -> None:
    Run(plan).steps(3).save()
    run = Run(resuming(plan, load_optimizer=False, load_rng=False))
    generators = torch.get_rng_state()
    resumed = run.load()
    assert resumed.state.step == 3
    assert ["with new state" in resumed.notes[0], "seeded again" in resumed.notes[1]] == [True, True]
    assert not run.engine.optimizer.state
    assert torch.equal(torch.get_rng_state(), generators)
    assert Run(resuming(plan)).load()
    assert not torch.equal(torch.get_rng_state(), generators)


def test_what_was_not_saved_must_not_be_wanted(plan: RunPlan) -> None:
    folder = Run(with_checkpoint(plan, save_optimizer=False, save_rng=False)).steps(1).save()
    assert not list(folder.glob("*.optimizer.*"))
    assert not list(folder.glob("*.rng.*"))
    with pytest.raises(CheckpointError, match=r"(?s)no-save-optim.*no-load-optim"):
        Run(resuming(plan)).load()
    with pytest.raises(CheckpointError, match=r"(?s)no-save-rng.*no-load-rng"):
        Run(resuming(plan, load_optimizer=False)).load()
    assert Run(resuming(plan, load_optimizer=False, load_rng=False)).load().state.step == 1


def test_whose_schedule_goes_on(plan: RunPlan) -> None:
    Run(plan).steps(1).save()
    changed = evolve(plan, optim=evolve(plan.optim, lr=0.5))
    with pytest.raises(CheckpointError, match=r"(?s)optimizer.params.lr: 0.001 there, 0.5 here.*override-lr-scheduler"):
        Run(resuming(changed)).load()
    assert Run(resuming(changed, schedule_from="config")).load().schedule(0) == 0.5
    known = {"schedule_from": "checkpoint", "schedules": {LINEAR.identity: LINEAR}}
    assert Run(resuming(changed, **known)).load().schedule(0) == 0.001
    damage = edit(
        lambda run: run["optim"]["schedule"].update(target="os:system", settings_class="os:abort"), "run.json"
    )
    damage(Path(str(plan.checkpoint.save)) / "step-00000001")
    assert Run(resuming(changed, **known)).load().schedule(0) == 0.001
    edit(lambda run: run["optim"]["schedule"].update(name="warp"), "run.json")(
        find_checkpoint(Path(str(plan.checkpoint.save)))
    )
    with pytest.raises(
        PluginError, match=r"(?s)lr schedule neox-lr:warp 0.1.0: is not installed here.*install neox-lr"
    ):
        Run(resuming(changed, **known)).load()


def test_nothing_to_load(plan: RunPlan, tmp_path: Path) -> None:
    for missing in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(CheckpointError, match=r"(?s)no checkpoint.*--resume auto"):
            Run(with_checkpoint(plan, load=str(missing))).load()
        fresh = Run(with_checkpoint(plan, load=str(missing), resume="auto")).load()
        assert fresh.path is None
        assert fresh.state.step == 0


def test_a_run_that_is_started_again_goes_on_with_its_own_checkpoints(plan: RunPlan, tmp_path: Path) -> None:
    Run(plan).steps(1).save()
    tuned = resuming(plan, save=str(tmp_path / "tuned"), finetune=True, load_optimizer=False, load_rng=False)
    again = with_checkpoint(tuned, resume="auto")
    first = Run(again)
    assert first.load().state.step == 0
    first.steps(2).save()
    first.steps(1)
    assert Run(tuned).load().state.step == 0
    second = Run(again)
    resumed = second.load()
    assert (resumed.state.step, resumed.path) == (2, tmp_path / "tuned" / "step-00000002")
    assert second.steps(1).losses == first.losses[2:]
    fewer = with_checkpoint(again, save_optimizer=False, save_rng=False)
    assert Run(fewer).load().notes == ()
    Run(fewer).steps(3).save()
    third = Run(again)
    resumed = third.load()
    assert (resumed.state.step, third.engine.optimizer.state) == (3, {})
    assert [note.split()[1] for note in resumed.notes] == ["optimizer", "random"]
    one_folder = with_checkpoint(again, save=f"{plan.checkpoint.save}/../save")
    assert Run(one_folder).load().state.step == 0, "finetune counts where both are one folder, however it is written"


def test_other_plugin_versions_are_reported(plan: RunPlan) -> None:
    Run(plan).steps(1).save()
    notes = Run(resuming(evolve(plan, plugins={"neox-adam": "0.2.0", "neox-x": "1"}))).load().notes
    assert notes == (
        "plugin neox-adam: 0.1.0 wrote the checkpoint, 0.2.0 continues",
        "plugin neox-lr: 0.1.0 wrote the checkpoint, not used continues",
        "plugin neox-x: not used wrote the checkpoint, 1 continues",
    )


def test_another_optimizer_has_to_begin_anew(plan: RunPlan) -> None:
    Run(plan).steps(1).save()
    lion = ComponentRef(
        "optimizer", "Lion", "neox-lion", "0.1.0", "neox_lion.optim:Lion", "neox_lion.settings:LionSettings"
    )
    other = evolve(plan, optim=evolve(plan.optim, optimizer=lion))
    with pytest.raises(CheckpointError, match="state of Adam, and this run's optimizer is Lion"):
        Run(resuming(other)).load()
    assert Run(resuming(other, load_optimizer=False)).load().state.step == 1


def test_another_batch_size_is_refused(plan: RunPlan) -> None:
    Run(plan).steps(2).save()
    with pytest.raises(CheckpointError, match="2 samples in 2 steps; this run takes 8, so"):
        Run(resuming(evolve(plan, batch=evolve(plan.batch, train_batch=4)))).load()


def test_another_model_is_refused(plan: RunPlan) -> None:
    Run(plan, width=12).steps(1).save()
    with pytest.raises(CheckpointError, match=r"another model: embed.weight is \[16, 12\], this model has \[16, 8\]"):
        Run(resuming(plan)).load()


def test_a_run_that_has_made_no_update_has_no_state(plan: RunPlan) -> None:
    folder = Run(plan).save()
    assert Run(with_checkpoint(plan, load=str(folder))).load().state.step == 0

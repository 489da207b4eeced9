"""What is on the disk after saves, also after those that a kill or a full disk ends."""

import math
import os
import resource
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch
from attrs import evolve
from checkpoint_runs import CONTEXT, Run, with_checkpoint

from neox_core.checkpoint.checkpointer import Checkpointer, find_checkpoint, read_weights
from neox_core.checkpoint.read import CheckpointReader
from neox_core.errors import CheckpointError
from neox_core.plan.runfile import RunPlan
from neox_core.plan.stored.saved import step_folders

pytestmark = pytest.mark.usefixtures("process_group")


def test_old_checkpoints_go(plan: RunPlan) -> None:
    run = Run(with_checkpoint(plan, keep_last=2))
    folders = [run.steps(1).save() for _ in range(4)]
    assert [folder.exists() for folder in folders] == [False, False, True, True]
    assert sorted(path.name for path in folders[0].parent.iterdir()) == ["latest", "step-00000003", "step-00000004"]


def test_a_run_that_begins_anew_in_a_folder_says_so_and_deletes_no_later_steps(plan: RunPlan) -> None:
    assert Run(plan).load().notes == ()
    last = Run(plan).steps(4).save()
    again = Run(with_checkpoint(plan, keep_last=1))
    assert [str(last) in note and "--resume auto" in note for note in again.load().notes] == [True]
    folders = [again.steps(1).save() for _ in range(2)]
    assert [folder.exists() for folder in (*folders, last)] == [False, True, True]
    assert find_checkpoint(last.parent) == folders[1]


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_weights_that_are_not_finite_are_not_saved_in_place_of_good_ones(plan: RunPlan, bad: float) -> None:
    run = Run(with_checkpoint(plan, keep_last=1))
    good = run.steps(1).save()
    run.steps(1)
    name, weight = next(iter(run.engine.model.named_parameters()))
    with torch.no_grad():
        weight.view(-1)[-1] = bad
    with pytest.raises(CheckpointError, match=f"{name} holds nan or inf"):
        run.save()
    assert sorted(path.name for path in good.parent.iterdir()) == ["latest", good.name]


def test_state_that_no_file_holds_names_the_optimizer(plan: RunPlan) -> None:
    """One that only a later step makes; what the first step makes is tried before a run starts."""
    run = Run(plan).steps(1)
    good = run.save()
    next(iter(run.steps(1).engine.optimizer.state.values()))["odd"] = {1}
    with pytest.raises(CheckpointError, match=rf"^{plan.optim.optimizer.owner}: its state 'odd' is a set, neither"):
        run.save()
    assert sorted(path.name for path in good.parent.iterdir()) == ["latest", good.name]


def test_state_of_another_shape_than_the_shard_names_the_optimizer_and_a_way_out(plan: RunPlan) -> None:
    """As under ZeRO, where the optimizer steps a slice. Also one that only a later step makes."""
    run = Run(plan).steps(1)
    run.engine.shards = tuple(evolve(shard, whole=False) for shard in run.engine.shards)
    next(iter(run.engine.optimizer.state.values()))["rows"] = torch.ones(1, 2)
    with pytest.raises(CheckpointError, match=r"its state 'rows' has the shape \[1, 2\]; under ZeRO") as caught:
        run.save()
    assert plan.optim.optimizer.owner in caught.value.message
    assert "without ZeRO and tensor parallelism" in str(caught.value.hint)


def test_a_deletion_that_is_killed_leaves_no_half_checkpoint(plan: RunPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(with_checkpoint(plan, keep_last=1))
    monkeypatch.setattr("shutil.rmtree", lambda path, ignore_errors: None)  # killed before the first file went
    folders = [run.steps(1).save() for _ in range(2)]
    assert [folder.exists() for folder in folders] == [False, True]


def test_coming_to_a_step_again_replaces_it(plan: RunPlan) -> None:
    Run(plan).steps(2).save()
    again = Run(plan).steps(1)
    again.engine.model.get_parameter("out.weight").data.zero_()
    assert torch.equal(read_weights(again.steps(1).save())["out.weight"], again.weights()["out.weight"])


def test_a_kill_before_latest_names_what_replaced_a_step_leaves_it_found(
    plan: RunPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`latest` held the checksum of the manifest that was replaced."""

    class Killed(BaseException):
        """What nothing handles."""

    def kill(folder: object) -> str:
        raise Killed

    Run(plan).steps(2).save()
    again = Run(plan).steps(1)
    again.engine.model.get_parameter("out.weight").data.zero_()
    again.steps(1)
    monkeypatch.setattr("neox_core.checkpoint.publish.latest_text", kill)
    with pytest.raises(Killed):
        again.save()
    found = find_checkpoint(Path(plan.checkpoint.save or ""))
    assert found is not None
    assert torch.equal(read_weights(found)["out.weight"], again.weights()["out.weight"])


def test_a_full_disk_leaves_the_last_checkpoint(plan: RunPlan) -> None:
    run = Run(plan).steps(1)
    folder = run.save()
    run.steps(1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # no file may grow beyond, as on a full disk
    try:
        with pytest.raises(CheckpointError, match=r"(?s)cannot write the checkpoint: File too large.*unchanged"):
            run.checkpointer.save(run.state)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(path.name for path in folder.parent.iterdir()) == ["latest", "step-00000001"]
    CheckpointReader(folder).verify()
    assert run.save().name == "step-00000002"  # there is room again


def test_a_kill_at_any_instant_leaves_a_whole_checkpoint(plan: RunPlan) -> None:
    run = Run(with_checkpoint(plan, keep_last=1), width=2000).steps(1)
    save = run.save().parent
    steps = [1]
    for attempt in range(12):
        child = os.fork()
        if child == 0:  # saves on and on, until it is killed
            torch.set_num_threads(1)
            while True:
                run.state.step += 1
                run.checkpointer.save(run.state)
        time.sleep(0.02 + 0.017 * attempt)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = find_checkpoint(save)
        assert found is not None
        for folder in step_folders(save):
            CheckpointReader(folder).verify()
        steps.append(int(found.name[5:]))
        run.state.step = steps[-1]
    assert steps == sorted(steps)
    assert steps[-1] > 3
    shutil.copytree(save / f"step-{steps[-1]:08d}", save / ".step-99999999.tmp")
    Checkpointer(plan, run.engine, CONTEXT).load()
    assert [path.name for path in save.iterdir() if path.name.startswith(".step")] == []

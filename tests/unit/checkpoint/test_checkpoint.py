"""Checkpoints of a real engine in this process: what is written, what is refused, what survives a kill."""

import hashlib
import json
import math
import os
import pickle
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from neox_deepspeed import api as deepspeed
from neox_plain import api as plain
from torch import Tensor, nn

from neox_core.checkpoint.checkpointer import Checkpointer, Resumed, find_checkpoint, read_weights
from neox_core.checkpoint.read import CheckpointReader
from neox_core.checkpoint.rng import seed_rank
from neox_core.checkpoint.state import TrainState
from neox_core.errors import CheckpointError, PluginError
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.runfile import CheckpointPlan, ComponentRef, RunPlan
from neox_core.plan.saved import latest_text, read_sealed, sealed, step_folders
from neox_core.run.optimizer import build_optimizer
from neox_core.testing.plans import example_plan

pytestmark = pytest.mark.usefixtures("process_group")

ADAM = ComponentRef(
    "optimizer", "Adam", "neox-adam", "0.1.0", "neox_adam.optim:adam", "neox_adam.settings:AdamSettings"
)
LINEAR = ComponentRef("lr schedule", "linear", "neox-lr", "0.1.0", "neox_lr.schedules:linear")
ENGINES = {"deepspeed": deepspeed.build_engine, "plain": plain.build_engine}
CONTEXT = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1)


class Tiny(nn.Module):
    """As much of a model as an engine needs: a loss from tokens, and dropout that draws random numbers."""

    draws, documents, sparse_weights = False, None, ()

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, width)
        self.norm = nn.LayerNorm(width)
        self.norm.no_weight_decay = {"weight", "bias"}  # type: ignore[assignment]
        self.out = nn.Linear(width, 16, bias=False)
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, tokens: Tensor, labels: Tensor, *, routing: None = None) -> Tensor:
        hidden = nn.functional.dropout(self.norm(self.embed(tokens)), 0.2, self.training)
        return nn.functional.cross_entropy(self.out(hidden).flatten(0, 1), labels.flatten())


class Run:
    """One run over the same endless batches, to be stepped by hand."""

    def __init__(self, plan: RunPlan, width: int = 8) -> None:
        self.plan = plan
        seed_rank(plan.train.seed, 0, CONTEXT.device)
        torch.manual_seed(3)
        model = Tiny(width)
        optimizer = build_optimizer(plan.optim, model)
        self.engine: Any = ENGINES[plan.engine_component.name](plan, model, optimizer, CONTEXT)
        self.checkpointer = Checkpointer(plan, self.engine, CONTEXT)
        self.state = TrainState()
        self.losses: list[float] = []

    def load(self) -> Resumed:
        resumed = self.checkpointer.load()
        self.state = resumed.state
        self.schedule = resumed.schedule
        return resumed

    def steps(self, count: int) -> "Run":
        for _ in range(count):
            batch = torch.randint(16, (2, 9), generator=torch.Generator().manual_seed(self.state.step))
            self.losses.append(float(self.engine.train_step(iter([batch]), lr=0.01)))
            self.state.advance(self.plan)
        return self

    def save(self) -> Path:
        folder = self.checkpointer.save(self.state)
        assert folder is not None
        return folder

    def weights(self) -> dict[str, Tensor]:
        return {name: weight.detach().clone() for name, weight in self.engine.model.named_parameters()}


@pytest.fixture(params=ENGINES)
def plan(tmp_path: Path, request: pytest.FixtureRequest) -> RunPlan:
    """Of each engine, at ZeRO 0."""
    plan = example_plan(tmp_path / "run", ranks=(1,))
    return evolve(
        plan,
        engine_component=evolve(plan.engine_component, name=request.param),
        optim=evolve(plan.optim, optimizer=ADAM, schedule=LINEAR, weight_decay=0.1),
        engine={"train_batch_size": 1, "train_micro_batch_size_per_gpu": 1},
        checkpoint=evolve(plan.checkpoint, save=str(tmp_path / "save")),
        plugins={"neox-adam": "0.1.0", "neox-lr": "0.1.0"},
    )


def with_checkpoint(plan: RunPlan, **changes: Any) -> RunPlan:
    checkpoint: CheckpointPlan = evolve(plan.checkpoint, **changes)
    return evolve(plan, checkpoint=checkpoint)


def resuming(plan: RunPlan, **changes: Any) -> RunPlan:
    return with_checkpoint(plan, load=plan.checkpoint.save, **changes)


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
    damage = _edit(
        lambda run: run["optim"]["schedule"].update(target="os:system", settings_class="os:abort"), "run.json"
    )
    damage(Path(str(plan.checkpoint.save)) / "step-00000001")
    assert Run(resuming(changed, **known)).load().schedule(0) == 0.001
    _edit(lambda run: run["optim"]["schedule"].update(name="warp"), "run.json")(
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
        "optimizer", "Lion", "neox-lion", "0.1.0", "neox_lion.optim:Lion", "neox_lion.plugin:LionSettings"
    )
    other = evolve(plan, optim=evolve(plan.optim, optimizer=lion))
    with pytest.raises(CheckpointError, match="state of Adam, and this run's optimizer is Lion"):
        Run(resuming(other)).load()
    assert Run(resuming(other, load_optimizer=False)).load().state.step == 1


def test_another_batch_size_is_refused(plan: RunPlan) -> None:
    Run(plan).steps(2).save()
    with pytest.raises(CheckpointError, match="2 samples in 2 steps; this run takes 4 a step"):
        Run(resuming(evolve(plan, batch=evolve(plan.batch, train_batch=4)))).load()


def test_another_model_is_refused(plan: RunPlan) -> None:
    Run(plan, width=12).steps(1).save()
    with pytest.raises(CheckpointError, match=r"another model: embed.weight is \[16, 12\], this model has \[16, 8\]"):
        Run(resuming(plan)).load()


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


Damage = Callable[[Path], None]


def _truncate(folder: Path) -> None:
    os.truncate(folder / "rank-00000.weights.safetensors", 200)


def _flip(folder: Path) -> None:
    file = folder / "rank-00000.optimizer.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def _lose(folder: Path) -> None:
    (folder / "rank-00000.rng.safetensors").unlink()


def _edit(change: Callable[[dict[str, Any]], object], file: str = "manifest.json") -> Damage:
    """A change of a JSON file by somebody who makes all checksums anew."""

    def damage(folder: Path) -> None:
        manifest, _ = read_sealed(folder / "manifest.json")
        content = manifest if file == "manifest.json" else json.loads((folder / file).read_text())
        change(content)
        if file != "manifest.json":
            data = json.dumps(content).encode()
            (folder / file).write_bytes(data)
            manifest["files"][file] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (folder / "manifest.json").write_bytes(sealed(manifest))
        (folder.parent / "latest").write_text(latest_text(folder))

    return damage


def _weight(manifest: dict[str, Any]) -> dict[str, Any]:
    return next(piece for piece in manifest["pieces"] if piece["kind"] == "weight")


def _swap_in_pickle(folder: Path) -> None:
    """A file that runs code when it is unpickled, with a manifest that vouches for it."""

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(folder / "pwned"),)

    data = pickle.dumps(Evil())
    (folder / "rank-00000.weights.safetensors").write_bytes(data)
    seal = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    _edit(lambda manifest: manifest["files"].update({"rank-00000.weights.safetensors": seal}))(folder)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_truncate, r"weights.safetensors: has 200 bytes, \d+ were written"),
        (_flip, "optimizer.safetensors: wrong checksum"),
        (_lose, "rng.safetensors: No such file"),
        (_swap_in_pickle, "weights.safetensors: cannot read"),
        (lambda folder: (folder / "state.json").write_text("{}"), "state.json: has 2 bytes"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json: cannot be read"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "not a JSON object"),
        (lambda folder: (folder / "manifest.json").write_bytes(b"\xff\xfe"), "manifest.json: cannot be read"),
        (_edit(lambda m: m.update(format=7)), "format 7, this version reads format 1"),
        (_edit(lambda m: m.pop("pieces")), "not a manifest"),
        (_edit(lambda m: m.update(extra=1)), "not a manifest"),
        (_edit(lambda m: m["pieces"][0].update(file="../../etc/passwd")), "not a manifest"),
        (_edit(lambda m: m["pieces"][0].update(file="rank-00009.weights.safetensors")), "names no checksum"),
        (_edit(lambda m: _weight(m).update(shape=[-16, 8])), "not a manifest"),
        (_edit(lambda m: _weight(m).update(shape=[10**9, 10**9])), "another model"),
        (_edit(lambda m: _weight(m).update(dtype="OBJ")), "not a manifest"),
        (_edit(lambda m: _weight(m).update(dtype="F16")), "is F32 .*, not F16"),
        (_edit(lambda m: _weight(m).update(flat_range=[0, 5])), "do not fit together"),
        (_edit(lambda m: _weight(m).update(flat_range=[5, 2])), "not a manifest"),
        (_edit(lambda m: _weight(m).update(slice=[[0, 4], [0, 8]])), "do not fit together"),
        (_edit(lambda m: _weight(m).update(slice=[[0, 99], [0, 8]])), "not a manifest"),
        (_edit(lambda m: _weight(m).update(key="weight/other")), "cannot read weight/other"),
        (_edit(lambda m: m["pieces"].remove(_weight(m))), "another model: no embed.weight"),
        (_edit(lambda m: m["files"].pop("run.json")), "names no checksum for run.json"),
    ],
)
def test_damage_is_refused(plan: RunPlan, damage: Damage, says: str) -> None:
    folder = Run(plan).steps(1).save()
    damage(folder)
    with pytest.raises(CheckpointError, match=says):
        Run(with_checkpoint(plan, load=str(folder))).load()
    assert not (folder / "pwned").exists()


def _piece(manifest: dict[str, Any], **fields: Any) -> dict[str, Any]:
    found = (piece for piece in manifest["pieces"] if fields.items() <= piece.items())
    return next(found)  # type: ignore[no-any-return]


def _drop(manifest: dict[str, Any], **fields: Any) -> None:
    manifest["pieces"] = [piece for piece in manifest["pieces"] if not fields.items() <= piece.items()]


SQUARE = {"kind": "state", "name": "out.weight", "state": "exp_avg_sq"}


@pytest.mark.parametrize("by", ["one who makes checksums anew", "an earlier version"])
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: _piece(m, **SQUARE).update(name="ouz.weight"), "state of ouz.weight, which is not in this model"),
        (lambda m: _piece(m, **SQUARE).update(state="exp_avg_sz"), "no exp_avg_sq of out.weight"),
        (
            lambda m: _piece(m, **SQUARE).update(kind="master", state=None),
            "an fp32 copy of out.weight, which is fp32 itself",
        ),
        (lambda m: _drop(m, **SQUARE), "no exp_avg_sq of out.weight"),
        (lambda m: _drop(m, kind="state", state="exp_avg_sq"), "no exp_avg_sq of embed.weight; no exp_avg_sq of norm"),
        (lambda m: _drop(m, kind="state"), "no exp_avg of embed.weight|no step of embed.weight"),
        (lambda m: _drop(m, kind="state", name="norm.bias"), "of norm.bias"),
        (lambda m: _piece(m, **SQUARE).update(shape=[8, 16]), r"exp_avg_sq of out.weight is \[8, 16\], not \[16, 8\]"),
        (
            lambda m: m.update(values={"out.weight": {"exp_avg_sq": 1.0}}) or _drop(m, **SQUARE),
            "is a number, not a tensor",
        ),
        (lambda m: m.update(values={"gone.weight": {"step": 1}}), "state of gone.weight, which is not in this model"),
        (lambda m: _drop(m, kind="weight", name="out.weight"), "no out.weight"),
        (lambda m: _drop(m, kind="buffer"), "no seen"),
        (lambda m: _drop(m, kind="rng"), "not a state of a random generator"),
        (lambda m: _drop(m, kind="rng", name="0/numpy"), "not a state of a random generator"),
    ],
)
def test_what_the_model_and_its_optimizer_need_has_to_be_there(
    plan: RunPlan, change: Callable[[dict[str, Any]], object], says: str, by: str
) -> None:
    """Also where every checksum holds, or where there is none of the manifest."""
    folder = Run(plan).steps(2).save()
    _edit(change)(folder)
    if by == "an earlier version":
        manifest, _ = read_sealed(folder / "manifest.json")
        (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=says):
        Run(with_checkpoint(plan, load=str(folder))).load()


class Errors(torch.optim.SGD):
    """Each rank keeps the error of its compression, as the 1-bit optimizers of several ranks do."""

    def __init__(self, params: Any, settings: None, group: Any) -> None:
        super().__init__(params, lr=0.1, momentum=0.9)
        self.error = torch.zeros(3)

    def needs_average(self) -> bool:
        return True

    def step(self, closure: Any = None) -> None:
        super().step(closure)
        self.error += 1

    def own_state(self) -> dict[str, Tensor]:
        return {"error": self.error}

    def load_own_state(self, stored: Sequence[Mapping[str, Tensor]]) -> None:
        if any(stored):
            self.error.copy_(stored[0]["error"])


@pytest.mark.parametrize("lost", ["nothing", "the pieces", "what the state says of them, as of an earlier version"])
def test_what_each_rank_keeps_for_itself_has_to_be_there(plan: RunPlan, lost: str) -> None:
    reference = ComponentRef("optimizer", "Errors", "neox-errors", "0.1.0", f"{__name__}:Errors")
    plan = evolve(plan, optim=evolve(plan.optim, optimizer=reference, weight_decay=0.0))
    folder = Run(plan).steps(2).save()
    run = Run(with_checkpoint(plan, load=str(folder)))
    if lost == "the pieces":
        _edit(lambda manifest: _drop(manifest, kind="own"))(folder)
        with pytest.raises(CheckpointError, match="no error, which each rank kept for itself"):
            run.load()
        return
    if lost != "nothing":
        _edit(lambda stored: stored.pop("own"), "state.json")(folder)
    run.load()
    assert torch.equal(run.engine.optimizer.error, torch.full((3,), 2.0))  # type: ignore[attr-defined]


def _state(**changes: Any) -> Damage:
    return _edit(lambda stored: stored["state"].update(changes), "state.json")


def _top(**changes: Any) -> Damage:
    return _edit(lambda stored: stored.update(changes), "state.json")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (_edit(lambda stored: stored.clear(), "state.json"), "not the state of a run"),
        (_edit(lambda stored: stored.pop("options"), "state.json"), "not the state of a run: required field missing"),
        (_state(step=1e30), "not the state of a run.*state.step"),
        (_state(step=10**30), "not the state of a run"),
        (_state(step=-1), "not the state of a run"),
        (_state(step=True), "not the state of a run"),
        (_state(step=10**7, consumed_samples=10**7), "is at step 2 by its manifest, at step 10000000 by state.json"),
        (_state(data_rounds=["a"]), "not the state of a run.*data_rounds"),
        (_state(data_rounds=[-5]), "not the state of a run: invalid value"),
        (_state(data_contents={"train": [5]}), "not the state of a run"),
        (_state(data_hash="x"), "not the state of a run"),
        (_top(plugins={"a": 5}), "not the state of a run"),
        (_top(skipped_steps=-1), "not the state of a run"),
        (_top(schedule=[1]), "not the state of a run"),
        (_top(options=[5, 6]), "not the state of a run"),
        (_top(options=[{"betas": "ab"}, {}]), "group option 'betas' cannot be 'ab'"),
        (_top(options=[{"eps": "1"}, {}]), "group option 'eps' cannot be '1'"),
        (_top(options=[{"eps": math.nan}, {}]), "group option 'eps' cannot be 'nan'"),
        (_top(options=[{"eps": {"a": 1}}, {}]), "group option 'eps' cannot be"),
        (_top(options=[{"params": []}, {}]), "group option 'params' cannot be"),
        (_top(options=[{}]), "1 parameter groups are stored, the optimizer has 2"),
        (_top(schedule={"\x1b[31m": "\x1b" * 10_000}), "another learning-rate schedule"),
        (_edit(lambda run: run.clear(), "run.json"), "run.json: names no optimizer"),
        (_edit(lambda run: run.update(optim=[1]), "run.json"), "run.json: "),
        (_edit(lambda run: run["optim"].update(optimizer="Adam"), "run.json"), "run.json: "),
        (_state(data_position=json.loads('{"a":' * 80 + "1" + "}" * 80)), "state.json: .* more than 64 levels"),
        (_top(neox_version="\ud800"), "state.json: .* half a surrogate pair"),
        (_edit(lambda m: m.update(values=json.loads('{"a":' * 80 + "1" + "}" * 80))), "manifest.json: .* 64 levels"),
        (_edit(lambda m: m.update(values={"\udfff": {}})), "manifest.json: .* half a surrogate pair"),
        (_edit(lambda m: m.update(step=10**30, world_size=10**12)), "is at step 1000000"),
    ],
)
def test_a_state_that_anybody_may_have_written_is_one_clear_error(plan: RunPlan, damage: Damage, says: str) -> None:
    folder = Run(plan).steps(2).save()
    damage(folder)
    with pytest.raises(CheckpointError, match=says) as caught:
        Run(with_checkpoint(plan, load=str(folder))).load()
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 1500


def test_a_run_that_has_made_no_update_has_no_state(plan: RunPlan) -> None:
    folder = Run(plan).save()
    assert Run(with_checkpoint(plan, load=str(folder))).load().state.step == 0


def test_every_change_of_a_single_byte_is_noticed(plan: RunPlan) -> None:
    folder = Run(plan).steps(2).save()
    save, draw = folder.parent, random.Random(7)
    files = sorted(path for path in save.rglob("*") if path.is_file())
    assert len(files) == 7
    places = [(file, draw.randrange(file.stat().st_size), draw.randrange(1, 256)) for file in files for _ in range(30)]
    places += [(folder / "manifest.json", draw.randrange(90), 1 << draw.randrange(8)) for _ in range(190)]
    missed = []
    for file, place, change in places:
        whole = file.read_bytes()
        file.write_bytes(whole[:place] + bytes([whole[place] ^ change]) + whole[place + 1 :])
        try:
            found = find_checkpoint(save)
            assert found is not None
            CheckpointReader(found).verify()
            missed.append((file.name, place, change))
        except CheckpointError:
            pass
        file.write_bytes(whole)
    assert len(places) == 400
    assert missed == []
    CheckpointReader(folder).verify()


@pytest.mark.parametrize("load", ["folder", "latest"])
def test_a_checkpoint_without_a_checksum_of_its_manifest_is_read_with_a_note(plan: RunPlan, load: str) -> None:
    folder = Run(plan).steps(1).save()
    manifest, _ = read_sealed(folder / "manifest.json")
    (folder / "manifest.json").write_text(json.dumps(manifest) + "\n")
    (folder.parent / "latest").write_text(f"{folder.name}\n")
    notes = Run(with_checkpoint(plan, load=str(folder if load == "folder" else folder.parent))).load().notes
    assert any("without a checksum of its manifest" in note for note in notes)


def test_latest_is_a_name_of_ours(plan: RunPlan, tmp_path: Path) -> None:
    folder = Run(plan).steps(1).save()
    for name in ("../save/step-00000001", "/etc", "step-1/../..", ""):
        (folder.parent / "latest").write_text(name)
        with pytest.raises(CheckpointError, match="is not the name of a checkpoint") as caught:
            find_checkpoint(folder.parent)
        assert "delete latest" in caught.value.hint
    (folder.parent / "latest").write_text("step-00000099")  # gone: the newest that is whole
    (folder.parent / "step-00000002").mkdir()
    assert find_checkpoint(folder.parent) == folder
    (folder.parent / "latest").unlink()  # the first save, killed before it wrote this
    assert find_checkpoint(folder.parent) == folder
    assert find_checkpoint(folder) == folder
    (folder.parent / "latest").mkdir()
    with pytest.raises(CheckpointError, match="is not a file"):
        find_checkpoint(folder.parent)


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
    shutil.copytree(save / f"step-{steps[-1]:08d}", save / ".step-00000077.tmp")
    Checkpointer(plan, run.engine, CONTEXT).load()
    assert [path.name for path in save.iterdir() if path.name.startswith(".step")] == []

"""What a resumed run must have in common with its checkpoint, checked on the host; the ranks check the tensors."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from neox_core.config.problem import MisfitError, Problem
from neox_core.config.schema.sections.training import BatchSection
from neox_core.config.schema.structure import Config
from neox_core.errors import CheckpointError
from neox_core.plan.batch import solve_batch
from neox_core.plan.runfile import RunPlan, to_plain
from neox_core.plan.stored.earlier import terms_today
from neox_core.plan.stored.saved import MANIFEST, RUN, STATE, read_stored
from neox_core.plan.stored.schedule import schedule_terms
from neox_core.plan.stored.state import StoredState, TrainState, stored_from_plain
from neox_core.untrusted import replaces, short
from neox_resume.changed import changed_numbers

ANEW = "`--set finetune=true` starts at step 0 from its weights"
SHOWN = 8
"""Number of changes of a schedule that a message lists."""


@frozen
class Saved:
    """Facts of a checkpoint. state: None where only its weights are taken. run: the plan of the run that wrote it.

    own: the state that each rank's optimizer kept for itself, by the manifest; None: the manifest does not list pieces.
    """

    folder: Path
    state: StoredState | None
    run: Mapping[str, Any]
    own: frozenset[str] | None


def read_saved(folder: Path, *, weights: bool = False) -> Saved:
    """Read the facts of a checkpoint. weights: whether only its weights are taken.

    Raises CheckpointError for files that a run did not write; the ranks check tensors.
    """
    manifest, stored, run = read_stored(folder, MANIFEST, STATE, RUN)
    if run.get("format") != 1:
        raise CheckpointError(f"{folder / RUN}: not a run file of format 1")
    state = None if weights else stored_from_plain(stored, folder, manifest.get("step", -1))
    return Saved(folder, state, run, _own_in(manifest) if manifest.get("format") == 1 else None)


def _own_in(manifest: Mapping[str, Any]) -> frozenset[str]:
    pieces = manifest.get("pieces")
    own = [each for each in pieces if _at(each, "kind", None) == "own"] if isinstance(pieces, list) else []
    return frozenset(str(_at(each, "name", "")).partition("/")[2] for each in own)


def compared(config: Config, plan: RunPlan, saved: Saved, key: str, *, own: bool) -> Iterator[Problem]:
    """Why a checkpoint does not fit a run, and a warning where no steps would be left.

    key: the one that names it. own: whether it is of this run.
    """
    other = "; ".join(sorted(_other_shape(plan, saved)))
    if other:
        hint = "the keys of the model must be those of the checkpoint; `neox config diff` shows all"
        yield config.problem(f"{saved.folder} was made for another model: {other}", key, hint)
    if saved.state is None:
        return
    state = saved.state.state
    if not other:
        yield from changed_numbers(config, plan, saved.run, str(saved.folder))
    if state.consumed_samples != plan.batch.samples_before(state.step):
        yield _other_batch(config, plan, saved, state, key)
    has_optimizer = _at(saved.run, "checkpoint", "save_optimizer", True)
    if plan.checkpoint.load_optimizer and not has_optimizer:
        message = f"{saved.folder} was written with no-save-optim"
        yield config.problem(message, key, f"`--set no-load-optim=true` starts with new state; {ANEW}")
    elif plan.checkpoint.load_optimizer or (own and has_optimizer):
        yield from (config.problem(*each) for each in _optimizer_faults(plan, saved, saved.state, key))
    if state.step >= plan.train.train_iters:
        message = f"leaves nothing to train: {saved.folder} is at step {state.step}"
        hint = f"continue with `--set train-iters=` a number above {state.step}"
        yield config.problem(message, "train_iters", hint, "warning")


def _other_shape(plan: RunPlan, saved: Saved) -> Iterator[str]:
    """The differences of the plan that give weights other shapes or names."""
    stored = _at(saved.run, "model", {})
    now = plan.model.shaping(to_plain(plan)["model"])
    then = plan.model.shaping(stored if isinstance(stored, dict) else {})
    for name in now.keys() & then.keys():
        if now[name] != then[name] and None not in (now[name], then[name]):
            yield f"{name} is {short(str(then[name]))} there, {now[name]} here"


def _other_batch(config: Config, plan: RunPlan, saved: Saved, state: TrainState, key: str) -> Problem:
    if plan.batch.ramp is not None or _at(saved.run, "batch", "ramp", None) is not None:
        said = f"{saved.folder} has {state.consumed_samples} samples in {state.step} steps, and this run reads"
        said += f" {plan.batch.samples_before(state.step)} in them: its position in the data would be lost"
        return config.problem(said, key, f"keep rampup-batch-size and train_batch_size; {ANEW}")
    then, ranks = state.consumed_samples / max(1, state.step), _ranks(saved.run)
    there = f"{then:g} samples a step" + (f" on {_counted(ranks)}" if ranks else "")
    here = f"{plan.batch.train_batch} on {_counted(plan.cluster.world_size)}"
    message = (
        f"{saved.folder} was written with {there}, and this run takes {here}: its position in the data would be lost"
    )
    sets = batch_sets(config, plan, int(then)) if then == int(then) else None
    ways = [ANEW] if sets is None else [f"`{sets}` keeps the batch", ANEW]
    if sets is None and then >= 1:
        copy = plan.cluster.tensor_parallel * plan.cluster.pipeline_parallel
        ways.insert(0, f"take a number of ranks that divides {int(then) * copy}")
    return config.problem(message, key, "; ".join(ways))


def batch_sets(config: Config, plan: RunPlan, train_batch: int) -> str | None:
    """The `--set` that gives this run a batch of `train_batch` samples and no larger micro-batch; None: none does."""
    written = config.section(BatchSection)
    dp, most = plan.batch.data_parallel, plan.batch.micro_batch
    if train_batch < 1 or train_batch % dp:
        return None
    share = train_batch // dp
    micro = max(size for size in range(1, min(share, most) + 1) if share % size == 0)
    wanted = {
        "train_batch_size": train_batch,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": share // micro,
    }
    for count in range(1, len(wanted) + 1):
        sets = dict(list(wanted.items())[:count])
        try:
            train, micro_batch, steps = (sets.get(key, getattr(written, key)) for key in wanted)
            solved = solve_batch(train, micro_batch, steps, dp)
        except MisfitError:
            continue
        if solved.micro_batch <= most:
            return " ".join(f"--set {config.spelled(key)}={value}" for key, value in sets.items())
    return None


def _optimizer_faults(plan: RunPlan, saved: Saved, stored: StoredState, key: str) -> Iterator[tuple[str, str, str]]:
    """(message, key, hint) of each."""
    name, plugin = (_at(saved.run, "optim", "optimizer", each, None) for each in ("name", "plugin"))
    mine = plan.optim.optimizer
    new = "`--set no-load-optim=true` starts with new state"
    if name is None or plugin is None:
        yield f"{saved.folder / RUN} names no optimizer", key, new
    elif name != mine.name and plugin != mine.plugin:
        yield f"{saved.folder} holds the state of {short(name)}, and this run's optimizer is {mine.name}", key, new
    for option, value in (pair for group in stored.options for pair in group.items()):
        set_to = mine.settings.get(option)
        if not replaces(value, float(set_to) if type(set_to) is int else set_to):
            message = f"{saved.folder} has {short(repr(value))} as the optimizer's {short(option)}"
            yield f"{message}, which is {set_to} here", key, new
    if stored.own is not None and saved.own is not None and (apart := saved.own ^ {*stored.own}):
        names = ", ".join(short(each) for each in sorted(apart)[:SHOWN])
        message = f"{saved.folder}: its manifest and {STATE} differ about what each rank's optimizer kept for itself"
        yield f"{message}: {names}", key, new
    now = json.loads(json.dumps(schedule_terms(plan.optim)))
    then = terms_today(stored.schedule, now)
    if plan.checkpoint.schedule_from == "must-match" and now != then:
        keys = sorted(each for each in {*now, *then} if now.get(each) != then.get(each))
        changes = "; ".join(f"{each}: {short(then.get(each))} there, {now.get(each)} here" for each in keys[:SHOWN])
        hint = "`--set override-lr-scheduler=true` takes the config's"
        hint += ", `--set use-checkpoint-lr-scheduler=true` the checkpoint's"
        yield f"{saved.folder} has another learning-rate schedule: {changes}", key, hint


def _ranks(run: Mapping[str, Any]) -> int | None:
    hosts = _at(run, "cluster", "hosts", None)
    slots = [_at(host, "slots", 0) for host in hosts] if isinstance(hosts, list) else []
    return sum(slots) if slots and all(type(each) is int for each in slots) else None


def _at(value: Any, *path: Any) -> Any:
    """The value at the keys of `path`, whose last item is the default for a missing value."""
    *keys, default = path
    for key in keys:
        value = value.get(key, default) if isinstance(value, Mapping) else default
    return value


def _counted(ranks: int) -> str:
    return "1 rank" if ranks == 1 else f"{ranks} ranks"

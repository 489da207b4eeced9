"""Saving and resuming a run. The format is described in `neox_core.checkpoint.manifest`."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist
from attrs import evolve, fields, frozen

from neox_core.checkpoint.agree import agree, agree_on_step
from neox_core.checkpoint.complete import check_model, check_optimizer
from neox_core.checkpoint.read import CheckpointReader, read_weights
from neox_core.checkpoint.restore import restore_optimizer, restore_own, restore_weights
from neox_core.checkpoint.rng import read_rng, write_rng
from neox_core.checkpoint.state import StoredState, TrainState, stored_from_plain, stored_to_plain
from neox_core.checkpoint.write import (
    PLAIN,
    RankContents,
    cannot_write,
    collect,
    discard,
    prune,
    publish,
    remove_leftovers,
    write_manifest,
    write_rank,
)
from neox_core.contracts.optim import planned_schedule
from neox_core.errors import CheckpointError
from neox_core.plan.runfile import optim_of, to_json, unknown
from neox_core.plan.stored.earlier import terms_today
from neox_core.plan.stored.remote import Remote, checkpoint_to_load, find_at, open_stores
from neox_core.plan.stored.saved import RUN, STATE, find_checkpoint, require_checkpoint, step_of
from neox_core.plan.stored.schedule import schedule_terms
from neox_core.untrusted import replaces, short

if TYPE_CHECKING:
    from neox_core.contracts.engine import Storage
    from neox_core.contracts.optim import LRSchedule
    from neox_core.parallel.context import BuildContext
    from neox_core.plan.runfile import OptimPlan, RunPlan

__all__ = ["Checkpointer", "Resumed", "find_checkpoint", "read_weights"]

T = TypeVar("T")
_ANOTHER = "load another checkpoint"
_SCALER_STATE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


@frozen
class Resumed:
    """Where a run starts. path: the checkpoint, None for a fresh start. notes: lines for people."""

    state: TrainState
    schedule: LRSchedule
    path: Path | str | None
    notes: tuple[str, ...]


class Checkpointer:
    """Writes and reads the checkpoints of one run. Every method is collective: all ranks call it together."""

    def __init__(self, plan: RunPlan, engine: Storage, context: BuildContext) -> None:
        self._plan = plan
        self._engine = engine
        self._groups = context.groups
        self._device = context.device
        self._rank = 0 if context.groups.world is None else dist.get_rank()
        self._world_size = plan.cluster.world_size
        self._saved_step: int | None = None
        self._stores = open_stores(plan.checkpoint)
        self._store = self._stores.get(plan.checkpoint.save or "")

    def save(self, state: TrainState) -> Path | str | None:
        """Write a checkpoint of `state` and return its folder, or its address in a store; None when the run does not
        save, or has already saved it.

        Raises CheckpointError on every rank when any rank could not write; earlier checkpoints are then unchanged.
        """
        plan = self._plan.checkpoint
        if plan.save is None or self._saved_step == state.step:
            return None
        store, name = self._store, f"step-{state.step:08d}"
        if store is not None and not store.token:
            self._own(store)
        final = (Path(plan.save) if store is None else store.folder) / name
        # of a store, each rank has its own, since ranks of several hosts need not share a disk
        written = final.with_name(f".{name}.tmp" if store is None else f".{name}.{self._rank}.tmp")
        alone = self._rank == 0 or store is not None
        try:
            self._on_all_ranks(lambda: _empty_folder(written) if alone else None)
            self._on_all_ranks(lambda: self._write(written))
            self._on_all_ranks(lambda: self._finish(written, final, state) if self._rank == 0 else None)
        except CheckpointError:
            if alone and written.exists():
                with suppress(OSError):
                    discard(written)  # frees the disk space
            raise
        self._saved_step = state.step
        if store is not None:
            shutil.rmtree(written, ignore_errors=True)
        return final if store is None else f"{store.url}/{name}"

    def _own(self, store: Remote) -> None:
        """Refuse further saves of a run that was started before this one in the same place."""
        self._on_all_ranks(lambda: store.own() if self._rank == 0 else None)
        self._on_all_ranks(lambda: store.join() if self._rank else None)

    def load(self) -> Resumed:
        """Load model, optimizer and generators from the planned checkpoint, or start at step 0 when none is planned.

        Raises CheckpointError when the checkpoint is missing and the plan requires one, when it is damaged, and
        when it does not fit this run.
        """
        plan = self._plan.checkpoint
        if self._store is not None:
            self._own(self._store)
        if self._rank == 0 and plan.save is not None:
            remove_leftovers(Path(plan.save) if self._store is None else self._store.folder)
        folder, own = self._on_all_ranks(lambda: checkpoint_to_load(plan, self._stores))
        agree_on_step(-1 if folder is None else step_of(folder), self._groups, self._device)
        require_checkpoint(plan, folder)
        if folder is None:
            return Resumed(TrainState(), self._schedule(self._plan.optim), None, self._in_the_way())
        return self._resume(folder, own=own)

    def _resume(self, folder: Path, *, own: bool) -> Resumed:
        """Load the checkpoint in a folder, or that of a store which `Remote.find` has found."""
        store = next((each for each in self._stores.values() if each.folder in (folder, folder.parent)), None)
        if store is None:
            return self._on_all_ranks(lambda: self._read(folder, CheckpointReader(folder), own=own))
        with store.naming():
            found = self._on_all_ranks(lambda: self._read(folder, CheckpointReader(folder, store.fetch), own=own))
        shutil.rmtree(folder, ignore_errors=True)  # other ranks of this host do the same
        return evolve(found, path=store.shown(folder))

    def rewind(self, state: TrainState) -> None:
        """Go back to the checkpoint that this run has saved or loaded last, and make `state` what it was there."""
        if self._saved_step is None:
            raise CheckpointError("this run has not saved a checkpoint to rewind to", hint="set save and save-interval")
        folder: Path | None = Path(self._plan.checkpoint.save or "", f"step-{self._saved_step:08d}")
        if self._store is not None:
            folder = self._on_all_ranks(lambda: find_at(self._plan.checkpoint.save, self._stores))
            if folder is None or step_of(folder) != self._saved_step:
                raise CheckpointError(f"{self._store.url}: the checkpoint of step {self._saved_step} is gone")
        resumed = self._resume(Path(folder or ""), own=True)
        for each in fields(TrainState):
            setattr(state, each.name, getattr(resumed.state, each.name))

    def _in_the_way(self) -> tuple[str, ...]:
        """A line about the checkpoints that an earlier run has left in `save`."""
        save = self._plan.checkpoint.save
        last: Path | str | None = find_at(save, self._stores)
        if last is None:
            return ()
        if self._store is not None:
            last = self._store.shown(Path(last))
        starts = "this run starts at step 0 and replaces checkpoints of the same steps"
        return (f"{last} belongs to an earlier run; {starts} (`--resume auto` continues from it)",)

    def _read(self, folder: Path, reader: CheckpointReader, *, own: bool) -> Resumed:
        engine, plan = self._engine, self._plan.checkpoint
        if own:  # everything in it, whatever the config sets about starting from `load`
            optimizer = plan.load_optimizer or reader.manifest.has_optimizer
            plan = evolve(
                plan, finetune=False, load_optimizer=optimizer, load_rng=plan.load_rng or reader.manifest.has_rng
            )
        # Each rank verifies a share of the files; none continues before all have.
        self._on_all_ranks(lambda: reader.verify(lambda index, _: index % self._world_size == self._rank))
        self._on_all_ranks(lambda: check_model(engine, reader, self._plan.model, finetune=plan.finetune))
        restore_weights(engine, reader, masters=plan.load_masters)
        if plan.finetune:
            return Resumed(TrainState(), self._schedule(self._plan.optim), folder, ())
        stored = stored_from_plain(reader.state(), folder / STATE)
        state, notes = stored.state, self._changed_versions(stored.plugins)
        if not reader.manifest.sealed:
            notes.append("an earlier version wrote the checkpoint, without a checksum of its manifest")
        if state.step != reader.manifest.step:
            message = f"{folder}: is at step {reader.manifest.step} by its manifest, at step {state.step} by {STATE}"
            raise CheckpointError(message, hint=_ANOTHER)
        if state.consumed_samples != (mine := self._plan.batch.samples_before(state.step)):
            raise CheckpointError(
                f"{folder}: {state.consumed_samples} samples in {state.step} steps; this run takes"
                f" {mine}, so its position in the data would change",
                hint="keep train_batch_size and its warm-up (another number of ranks is fine), or set finetune: true",
            )
        self._engine.start_at(state.consumed_samples)
        optim = self._plan.optim
        if plan.load_optimizer:
            if not reader.manifest.has_optimizer:
                raise CheckpointError(f"{folder}: written with no-save-optim", hint="set no-load-optim or finetune")
            self._require_state_of_its_own(reader)
            updated = state.step > stored.skipped_steps
            self._on_all_ranks(
                lambda: check_optimizer(
                    engine, optim.optimizer, reader, self._plan.model, updated=updated, own=stored.own
                )
            )
            restore_optimizer(engine, reader)
            self._restore_extras(stored)
            notes += restore_own(engine, reader, self._rank, self._world_size)
            optim = self._choose_schedule(reader, stored.schedule)
        else:
            notes.append("the optimizer starts with new state, since its state is not loaded")
        if plan.load_rng:
            notes += self._restore_rng(reader)
        else:
            notes.append("the random generators are seeded again, since their state is not loaded")
        if folder.parent == (Path(plan.save or "") if self._store is None else self._store.folder):
            self._saved_step = state.step
        return Resumed(state, self._schedule(optim), folder, tuple(notes))

    def _write(self, folder: Path) -> None:
        with self._engine.at_hand():
            write_rank(folder, self._contents())
        if self._store is not None:
            self._store.upload(folder, self._rank)

    def _contents(self) -> RankContents:
        plan, groups = self._plan.checkpoint, self._groups
        contents = collect(
            self._engine,
            self._rank,
            groups,
            optimizer=plan.save_optimizer,
            whole=plan.whole_weights,
        )
        if plan.save_rng:
            for name, tensor in read_rng(self._device).items():
                contents.add("rng", "rng", f"{self._rank}/{name}", tensor, rank=self._rank)
        return contents

    def _finish(self, written: Path, final: Path, state: TrainState) -> None:
        plan, store = self._plan.checkpoint, self._store
        if store is not None:
            for rank in range(self._world_size):
                store.collect(written, rank)
        write_manifest(
            written,
            state.step,
            self._world_size,
            to_json(self._plan),
            self._describe(state),
            optimizer=plan.save_optimizer,
            rng=plan.save_rng,
        )
        if store is not None:
            store.publish(written, plan.keep_last)
            return
        publish(written, final)
        if plan.keep_last is not None:
            prune(final.parent, plan.keep_last, final)

    def _describe(self, state: TrainState) -> dict[str, Any]:
        """The content of state.json."""
        scaler = self._engine.loss_scaler()
        options = self._engine.changed_options()
        for name, value in (pair for group in options for pair in group.items()):
            if not isinstance(value, PLAIN):
                raise CheckpointError(
                    f"the optimizer's group option {name!r} has become a {type(value).__name__}, not a number"
                )
        stored = StoredState(
            state=state,
            schedule=schedule_terms(self._plan.optim),
            plugins=self._plan.plugins,
            neox_version=self._plan.neox_version,
            skipped_steps=self._engine.skipped_steps(),
            loss_scaler={name: getattr(scaler, name) for name in _SCALER_STATE if hasattr(scaler, name)},
            options=options,
        )
        return stored_to_plain(stored)

    def _restore_extras(self, stored: StoredState) -> None:
        self._engine.count_skipped(stored.skipped_steps)
        self._engine.change_options(stored.options)
        scaler = self._engine.loss_scaler()
        for name, value in stored.loss_scaler.items():
            if name in _SCALER_STATE and hasattr(scaler, name):
                if not replaces(value, getattr(scaler, name)) or (name == "cur_scale" and not 0 < value < math.inf):
                    raise CheckpointError(f"the loss scaler's {name} cannot be {short(value)!r}", hint=_ANOTHER)
                setattr(scaler, name, value)

    def _restore_rng(self, reader: CheckpointReader) -> list[str]:
        if not reader.manifest.has_rng:
            raise CheckpointError(f"{reader.folder}: written with no-save-rng", hint="set no-load-rng")
        if reader.manifest.world_size != self._world_size:
            ranks = f"{reader.manifest.world_size} ranks, not {self._world_size}"
            return [f"written by {ranks}: the random generators are seeded again"]
        try:
            write_rng(reader.of_rank("rng", self._rank), self._device)
        except (KeyError, ValueError, TypeError, RuntimeError, OverflowError) as error:
            raise CheckpointError(f"{reader.folder}: not a state of a random generator: {error}") from error
        return []

    def _choose_schedule(self, reader: CheckpointReader, stored: dict[str, Any]) -> OptimPlan:
        """Which schedule counts, by override-lr-scheduler and use-checkpoint-lr-scheduler."""
        source, mine = self._plan.checkpoint.schedule_from, json.loads(json.dumps(schedule_terms(self._plan.optim)))
        if source == "checkpoint":
            optim = optim_of(reader.run(), reader.folder / RUN)
            self._plan.optim.schedule.load()  # the config replaces it, so it counts as read
            here = (self._plan.checkpoint.schedules or {}).get(optim.schedule.identity, unknown(optim.schedule))
            return evolve(optim, schedule=evolve(here, settings=optim.schedule.settings))
        stored = terms_today(stored, mine)
        if source == "must-match" and mine != stored:
            keys = sorted(key for key in {*mine, *stored} if mine.get(key) != stored.get(key))
            changes = "; ".join(f"{short(key)}: {short(stored.get(key))} there, {mine.get(key)} here" for key in keys)
            raise CheckpointError(
                f"{reader.folder}: another learning-rate schedule: {changes}",
                hint="set override-lr-scheduler for the config's, use-checkpoint-lr-scheduler for the checkpoint's",
            )
        return self._plan.optim

    def _require_state_of_its_own(self, reader: CheckpointReader) -> None:
        """Optimizers of one plugin may share their state, such as Adam and CPU_Adam."""
        now = self._plan.optim.optimizer
        try:
            then = reader.run()["optim"]["optimizer"]
            name, plugin = then["name"], then["plugin"]
        except (KeyError, TypeError):
            raise CheckpointError(f"{reader.folder / RUN}: names no optimizer", hint=_ANOTHER) from None
        if name != now.name and plugin != now.plugin:
            raise CheckpointError(
                f"{reader.folder}: holds the state of {short(name)}, and this run's optimizer is {now.name}",
                hint="set no-load-optim: true to start with new state",
            )

    def _changed_versions(self, then: dict[str, str]) -> list[str]:
        now = self._plan.plugins
        return [
            f"plugin {short(name)}: {short(then.get(name, 'not used'))} wrote the checkpoint,"
            f" {now.get(name, 'not used')} continues"
            for name in sorted({*then, *now})
            if then.get(name) != now.get(name)
        ]

    def _schedule(self, optim: OptimPlan) -> LRSchedule:
        return planned_schedule(optim, self._plan.train.train_iters)

    def _on_all_ranks(self, act: Callable[[], T]) -> T:
        """Do it on this rank, then check that every rank could."""
        failure: CheckpointError | None = None
        found: Any = None
        try:
            found = act()
        except CheckpointError as error:
            failure = error
        agree(failure, self._groups, self._device)
        done: T = found
        return done


def _empty_folder(folder: Path) -> None:
    try:
        if folder.exists():
            discard(folder)
        folder.mkdir(parents=True)
    except OSError as error:
        raise cannot_write(folder, error) from error

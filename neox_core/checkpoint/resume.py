"""Puts a checkpoint into a run: what has to fit, what is loaded, what a person is told; and the schedule."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from attrs import evolve, frozen

from neox_core.checkpoint.agree import on_all_ranks
from neox_core.checkpoint.complete import check_model, check_optimizer
from neox_core.checkpoint.contents import other_tokenizer
from neox_core.checkpoint.read import CheckpointReader
from neox_core.checkpoint.restore import restore_optimizer, restore_own, restore_weights
from neox_core.checkpoint.rng import write_rng
from neox_core.contracts.optim import planned_schedule, planned_shape
from neox_core.errors import CheckpointError
from neox_core.plan.runfile import optim_of, unknown
from neox_core.plan.stored.earlier import terms_today
from neox_core.plan.stored.saved import RUN
from neox_core.plan.stored.schedule import schedule_terms
from neox_core.plan.stored.state import SCALER_STATE, StoredState, TrainState, stored_from_plain
from neox_core.untrusted import replaces, short

if TYPE_CHECKING:
    from neox_core.contracts.engine import Storage
    from neox_core.contracts.optim import LRSchedule, Optimizer
    from neox_core.parallel.context import BuildContext
    from neox_core.plan.runfile import ComponentRef, OptimPlan, RunPlan

_ANOTHER = "load another checkpoint"


@frozen
class Resumed:
    """Where a run starts. path: the checkpoint, None for a fresh start. notes: lines for people."""

    state: TrainState
    schedule: RunSchedule
    path: Path | str | None
    notes: tuple[str, ...]


class Resume:
    """Loads checkpoints into one run."""

    def __init__(self, plan: RunPlan, engine: Storage, context: BuildContext) -> None:
        self._plan = plan
        self._engine = engine
        self._groups = context.groups
        self._device = context.device
        self._rank = 0 if context.groups.world is None else dist.get_rank()
        self._world_size = plan.cluster.world_size

    def at_start(self, notes: tuple[str, ...]) -> Resumed:
        """A run that starts at step 0."""
        return Resumed(TrainState(), self._schedule(self._plan.optim), None, notes)

    def read(self, reader: CheckpointReader, *, own: bool) -> Resumed:
        """Load what `reader` has, once each rank has verified a share of its files. Collective.

        own: a checkpoint of this run, of which everything counts, whatever the config sets about starting from `load`.
        """
        folder, engine, plan = reader.folder, self._engine, self._plan.checkpoint
        if own:
            optimizer = plan.load_optimizer or reader.manifest.has_optimizer
            plan = evolve(
                plan, finetune=False, load_optimizer=optimizer, load_rng=plan.load_rng or reader.manifest.has_rng
            )
        # Each rank verifies a share of the files; none continues before all have.
        self._on_all_ranks(lambda: reader.verify(lambda index, _: index % self._world_size == self._rank))
        self._on_all_ranks(lambda: check_model(engine, reader, self._plan.model, finetune=plan.finetune))
        restore_weights(engine, reader, masters=plan.load_masters)
        if plan.finetune:
            said = other_tokenizer(reader, self._plan.data)
            return Resumed(TrainState(), self._schedule(self._plan.optim), folder, (said,) if said else ())
        stored = stored_from_plain(reader.state(), folder, reader.manifest.step)
        state, notes = stored.state, self._changed_versions(stored.plugins)
        if not reader.manifest.sealed:
            notes.append("an earlier version wrote the checkpoint, without a checksum of its manifest")
        if state.consumed_samples != (mine := self._plan.batch.samples_before(state.step)):
            said = f"{state.consumed_samples} samples in {state.step} steps; this run takes {mine}, so its position in"
            hint = "keep train_batch_size and its warm-up (another number of ranks is fine), or set finetune: true"
            raise CheckpointError(f"{folder}: {said} the data would change", hint=hint)
        self._engine.start_at(state.consumed_samples)
        optim = self._plan.optim
        if plan.load_optimizer:
            if not reader.manifest.has_optimizer:
                raise CheckpointError(f"{folder}: written with no-save-optim", hint="set no-load-optim or finetune")
            self._require_state_of_its_own(reader)
            updated = state.step > stored.skipped_steps
            share = range(self._rank, reader.manifest.world_size, self._world_size)
            self._on_all_ranks(
                lambda: check_optimizer(
                    engine, optim.optimizer, reader, self._plan.model, updated=updated, own=stored.own, ranks=share
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
        return Resumed(state, self._schedule(optim), folder, tuple(notes))

    def _restore_extras(self, stored: StoredState) -> None:
        self._engine.count_skipped(stored.skipped_steps)
        self._engine.change_options(stored.options)
        scaler = self._engine.loss_scaler()
        for name, value in stored.loss_scaler.items():
            if name in SCALER_STATE and hasattr(scaler, name):
                if not replaces(value, getattr(scaler, name)):
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
            said = f"{reader.folder}: another learning-rate schedule: {changes}"
            hint = "set override-lr-scheduler for the config's, use-checkpoint-lr-scheduler for the checkpoint's"
            raise CheckpointError(said, hint=hint)
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
            said = f"{reader.folder}: holds the state of {short(name)}, and this run's optimizer is {now.name}"
            raise CheckpointError(said, hint="set no-load-optim: true to start with new state")

    def _changed_versions(self, then: dict[str, str]) -> list[str]:
        now = self._plan.plugins
        return [
            f"plugin {short(name)}: {short(then.get(name, 'not used'))} wrote the checkpoint,"
            f" {now.get(name, 'not used')} continues"
            for name in sorted({*then, *now})
            if then.get(name) != now.get(name)
        ]

    def _schedule(self, optim: OptimPlan) -> RunSchedule:
        return run_schedule(optim, self._plan.train.train_iters)

    def _on_all_ranks(self, act: Callable[[], None]) -> None:
        on_all_ranks(act, self._groups, self._device)


@frozen
class RunSchedule:
    """A schedule as the loop uses it. Raises PluginError for a fault of the component."""

    rate: LRSchedule
    made: Any
    reference: ComponentRef

    def __call__(self, step: int) -> float:
        """The learning rate of the update after `step` finished steps."""
        return self.rate(step)

    @contextmanager
    def around(self, step: int, optimizer: Optimizer) -> Iterator[None]:
        """That update's options in the groups of the optimizer; their own after it, which a checkpoint stores."""
        with self.reference.blamed():
            options = self.made.options(step) if hasattr(self.made, "options") else {}
        before = [{name: group[name] for name in options if name in group} for group in optimizer.param_groups]
        for group, names in zip(optimizer.param_groups, before, strict=True):
            group.update({name: options[name] for name in names})
        try:
            yield
        finally:
            for group, own in zip(optimizer.param_groups, before, strict=True):
                group.update(own)


def run_schedule(plan: OptimPlan, total_steps: int) -> RunSchedule:
    """The schedule of a plan. total_steps: length of the run, in optimizer steps."""
    made = plan.schedule.make(planned_shape(plan, total_steps))
    return RunSchedule(planned_schedule(plan, total_steps), made, plan.schedule)

"""Saving and resuming a run. The format is described in `neox_core.checkpoint.manifest`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist
from attrs import evolve, fields

from neox_core.checkpoint.agree import agree_on_step, on_all_ranks
from neox_core.checkpoint.publish import Ending, cannot_write, complete, discard, remove_leftovers
from neox_core.checkpoint.read import CheckpointReader, read_weights
from neox_core.checkpoint.resume import Resume, Resumed
from neox_core.checkpoint.rng import read_rng
from neox_core.checkpoint.write import PLAIN, RankContents, collect, write_rank
from neox_core.errors import CheckpointError
from neox_core.plan.runfile import to_json
from neox_core.plan.stored.saved import find_checkpoint, require_checkpoint, step_of
from neox_core.plan.stored.schedule import schedule_terms
from neox_core.plan.stored.state import SCALER_STATE, StoredState, TrainState, stored_to_plain
from neox_core.plan.stored.stores import checkpoint_to_load, find_at, open_stores

if TYPE_CHECKING:
    from neox_core.contracts.engine import BackgroundWriter, Storage
    from neox_core.contracts.store import StoredCheckpoints
    from neox_core.parallel.context import BuildContext
    from neox_core.plan.runfile import RunPlan

__all__ = ["Checkpointer", "Resumed", "find_checkpoint", "read_weights"]

T = TypeVar("T")


class Checkpointer:
    """Writes and reads the checkpoints of one run.

    Every method but `attend` and `close` is collective: all ranks call it together.
    """

    def __init__(self, plan: RunPlan, engine: Storage, context: BuildContext) -> None:
        self._plan = plan
        self._run = to_json(plan)
        self._engine = engine
        self._groups = context.groups
        self._device = context.device
        self._rank = 0 if context.groups.world is None else dist.get_rank()
        self._world_size = plan.cluster.world_size
        self._resume = Resume(plan, engine, context)
        self._saved_step: int | None = None
        self._stores = open_stores(plan.checkpoint)
        self._store = self._stores.get(plan.checkpoint.save or "")
        behind = plan.checkpoint.background is not False and plan.checkpoint.save is not None
        self._writer: BackgroundWriter | None = getattr(engine, "background_writer")() if behind else None  # noqa: B009
        self._complete: list[tuple[int, Path | str]] = []

    def save(self, state: TrainState) -> Path | str | None:
        """Write a checkpoint of `state` and return its folder, or its address in a store; None when the run does not
        save, or has already saved it, or trains on while it is written.

        Waits for the one before. Raises CheckpointError on every rank when any could not write; others are unchanged.
        """
        plan = self._plan.checkpoint
        if plan.save is None or self._saved_step == state.step:
            return None
        self.wait()
        store, name = self._store, f"step-{state.step:08d}"
        if store is not None and not store.token:
            self._own(store)
        final = (Path(plan.save) if store is None else store.folder) / name
        # of a store, each rank has its own, since ranks of several hosts need not share a disk
        written = final.with_name(f".{name}.tmp" if store is None else f".{name}.{self._rank}.tmp")
        shown = final if store is None else f"{store.url}/{name}"
        alone = self._rank == 0 or store is not None
        ending = partial(self._ending, written, final, state)
        try:
            self._on_all_ranks(lambda: _empty_folder(written) if alone else None)
            writer = self._writer if state.step != self._plan.train.train_iters else None  # after it nothing trains on
            behind = writer is not None and writer.start(self._collected, ending, shown, store)
            if not behind:
                self._on_all_ranks(lambda: self._write(written))
                self._on_all_ranks(lambda: complete(ending(), store) if self._rank == 0 else None)
        except CheckpointError:
            if alone and written.exists():
                with suppress(OSError):
                    discard(written)  # frees the disk space
            raise
        self._saved_step = state.step
        if behind:
            return None
        self._complete.append((state.step, shown))
        if store is not None:
            shutil.rmtree(written, ignore_errors=True)
        return shown

    def wait(self) -> None:
        """Wait until the checkpoint that is written while the run trains is complete. Raises as `save`."""
        if self._writer is not None:
            self._complete += self._writer.wait()

    def attend(self, say: Callable[[str], None]) -> bool:
        """As `BackgroundWriter.attend`."""
        return self._writer is not None and self._writer.attend(say)

    def close(self) -> None:
        """As `BackgroundWriter.close`."""
        if self._writer is not None:
            self._writer.close()

    def completed(self) -> list[tuple[int, Path | str]]:
        """Steps and places of the checkpoints that were completed since the last call, the same on all ranks."""
        taken, self._complete = self._complete, []
        return taken

    def _own(self, store: StoredCheckpoints) -> None:
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
            return self._resume.at_start(self._in_the_way())
        return self._load(folder, own=own)

    def _load(self, folder: Path, *, own: bool) -> Resumed:
        """Load the checkpoint in a folder, or that of a store which `StoredCheckpoints.find` has found."""
        found = self._loaded(folder, own=own)
        plan = self._plan.checkpoint
        saves = Path(plan.save or "") if self._store is None else self._store.folder
        if folder.parent == saves and (own or not plan.finetune):
            self._saved_step = found.state.step
        return found

    def _loaded(self, folder: Path, *, own: bool) -> Resumed:
        store = next((each for each in self._stores.values() if each.folder in (folder, folder.parent)), None)
        if store is None:
            return self._on_all_ranks(lambda: self._resume.read(CheckpointReader(folder), own=own))
        with store.naming():
            found = self._on_all_ranks(lambda: self._resume.read(CheckpointReader(folder, store.fetch), own=own))
        shutil.rmtree(folder, ignore_errors=True)  # other ranks of this host do the same
        return evolve(found, path=store.shown(folder))

    def rewind(self, state: TrainState) -> None:
        """Go back to the checkpoint that this run has saved or loaded last, and make `state` what it was there."""
        self.wait()
        if self._saved_step is None:
            raise CheckpointError("this run has not saved a checkpoint to rewind to", hint="set save and save-interval")
        folder: Path | None = Path(self._plan.checkpoint.save or "", f"step-{self._saved_step:08d}")
        if self._store is not None:
            folder = self._on_all_ranks(lambda: find_at(self._plan.checkpoint.save, self._stores))
            if folder is None or step_of(folder) != self._saved_step:
                raise CheckpointError(f"{self._store.url}: the checkpoint of step {self._saved_step} is gone")
        resumed = self._load(Path(folder or ""), own=True)
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

    @contextmanager
    def _collected(self, *, check: bool = True) -> Iterator[RankContents]:
        plan, contents = self._plan.checkpoint, RankContents(self._rank, check)
        with self._engine.at_hand():
            optimizer = self._plan.optim.optimizer if plan.save_optimizer else None
            collect(contents, self._engine, self._groups, optimizer, whole=plan.whole_weights)
            for name, tensor in read_rng(self._device).items() if plan.save_rng else ():
                contents.add("rng", "rng", f"{self._rank}/{name}", tensor, rank=self._rank)
            yield contents

    def _write(self, folder: Path) -> None:
        with self._collected() as contents:
            write_rank(folder, contents)
        if self._store is not None:
            self._store.upload(folder, self._rank)

    def _ending(self, written: Path, final: Path, state: TrainState) -> Ending:
        plan = self._plan.checkpoint
        described, rest = self._describe(state), (plan.save_optimizer, plan.save_rng, plan.keep_last)
        return Ending(str(written), str(final), state.step, self._world_size, self._run, described, *rest)

    def _on_all_ranks(self, act: Callable[[], T]) -> T:
        return on_all_ranks(act, self._groups, self._device)

    def _describe(self, state: TrainState) -> dict[str, Any]:
        """The content of state.json."""
        scaler = self._engine.loss_scaler()
        options = self._engine.changed_options()
        for name, value in (pair for group in options for pair in group.items()):
            if not isinstance(value, PLAIN):
                said = f"the optimizer's group option {name!r} has become a {type(value).__name__}, not a number"
                raise CheckpointError(said)
        stored = StoredState(
            state=state,
            schedule=schedule_terms(self._plan.optim),
            plugins=self._plan.plugins,
            neox_version=self._plan.neox_version,
            skipped_steps=self._engine.skipped_steps(),
            loss_scaler={name: getattr(scaler, name) for name in SCALER_STATE if hasattr(scaler, name)},
            options=options,
            stages=getattr(self._engine, "stages", ()),
        )
        return stored_to_plain(stored)


def _empty_folder(folder: Path) -> None:
    try:
        if folder.exists():
            discard(folder)
        folder.mkdir(parents=True)
    except OSError as error:
        raise cannot_write(folder, error) from error

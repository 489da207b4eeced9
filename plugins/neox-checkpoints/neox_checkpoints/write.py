"""Writes a checkpoint of neox from one of another program, a few tensors at a time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from neox_checkpoints.contracts import ForeignCheckpoint, Stored
from neox_core.checkpoint.publish import cannot_write, publish, write_manifest
from neox_core.checkpoint.rng import read_rng, seed_rank, undisturbed
from neox_core.checkpoint.write import RankContents, write_rank
from neox_core.errors import CheckpointError
from neox_core.plan.runfile import to_json
from neox_core.plan.stored.schedule import schedule_terms
from neox_core.plan.stored.state import StoredState, TrainState, stored_to_plain

if TYPE_CHECKING:
    from neox_core.plan.runfile import RunPlan

FILE_BYTES = 1 << 30
"""Tensors that are held and written at once; a parameter with its states is never divided."""
_PART = {"weight": "weights", "master": "optimizer", "state": "optimizer"}


def write_checkpoint(out: Path, found: ForeignCheckpoint, plan: RunPlan, file_bytes: int = FILE_BYTES) -> Path:
    """Write `found` as a checkpoint of `plan` in `out`, and return its folder. Raises CheckpointError; what was written
    until then is removed.
    """
    step = found.progress.step
    written, final = out / f".step-{step:08d}.tmp", out / f"step-{step:08d}"
    try:
        written.mkdir(parents=True)
        files = _write(written, found.tensors(plan.model), plan, file_bytes)
        write_manifest(
            written, step, files, to_json(plan), _state(found, plan), optimizer=found.has_optimizer, rng=True
        )
        publish(written, final)
    except OSError as error:
        raise cannot_write(out, error) from error
    finally:
        shutil.rmtree(written, ignore_errors=True)
    return final


def _write(folder: Path, tensors: Iterable[Stored], plan: RunPlan, file_bytes: int) -> int:
    """Returns the number of files, each of which is that of a rank."""
    contents, held, files = RankContents(0), 0, 0
    last = ""
    for each in tensors:
        if held >= file_bytes and each.name != last:
            _finish(folder, contents, plan)
            files += 1
            contents, held = RankContents(files), 0
        contents.add(_PART[each.kind], each.kind, each.name, each.tensor.contiguous(), state=each.state)
        held += each.tensor.numel() * each.tensor.element_size()
        last = each.name
    _finish(folder, contents, plan)
    return files + 1


def _finish(folder: Path, contents: RankContents, plan: RunPlan) -> None:
    """Write a rank's files, with the random generators as they are at the start of a run: no loss depends on them."""
    device = torch.device("cpu")
    with undisturbed():
        seed_rank(plan.train.seed, contents.rank, device)
        for name, tensor in read_rng(device).items():
            contents.add("rng", "rng", f"{contents.rank}/{name}", tensor, rank=contents.rank)
    write_rank(folder, contents)


def _state(found: ForeignCheckpoint, plan: RunPlan) -> dict[str, Any]:
    progress = found.progress
    samples = progress.step * plan.batch.train_batch
    stored = StoredState(
        state=TrainState(step=progress.step, consumed_samples=samples, consumed_tokens=samples * plan.model.seq_length),
        schedule=schedule_terms(plan.optim),
        plugins=plan.plugins,
        neox_version=plan.neox_version,
        skipped_steps=progress.skipped_steps,
        loss_scaler=dict(progress.loss_scaler),
        options=[],
        own=(),
    )
    return stored_to_plain(stored)


def config_text(source: str, keys: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    """Flat YAML; JSON's notation of a value is YAML's too."""
    lines = [f"# Continues the training of {source}, as `neox checkpoint import` found it."]
    for key, value in keys.items():
        lines += [f"# {comments[key]}"] if key in comments else []
        lines.append(f"{key}: {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def require_empty(out: Path) -> None:
    """Raises CheckpointError for a folder with something in it."""
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise CheckpointError(f"{out}: exists already", hint="name another folder, or remove it")
    except OSError as error:
        raise cannot_write(out, error) from error

"""Which folder holds a checkpoint, and whose it is. Reads names, `latest`, and nothing else."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neox_core.errors import CheckpointError

if TYPE_CHECKING:
    from neox_core.plan.runfile import CheckpointPlan

MANIFEST, RUN, STATE, LATEST = "manifest.json", "run.json", "state.json", "latest"
STEP_FOLDER = re.compile(r"step-(\d{8,})")
_NEOX_STEP = re.compile(r"global_step\d+")
_NEOX_FILES = ("mp_rank_*_model_states.pt", "layer_*-model_*-model_states.pt")
_LONGEST_NAME = 4096
"""Bytes of `latest` that are read: a name is far shorter."""
MOST_BYTES = 64 * 2**20
"""Of a JSON file of a checkpoint that the host reads."""


def checkpoint_to_load(plan: CheckpointPlan) -> tuple[Path | None, bool]:
    """What a run begins from, None for a fresh start, and whether it is its own, which it goes on from as it is.

    With `--resume auto` what the run has saved comes before `load`. Raises CheckpointError as `find_checkpoint`.
    """
    apart = plan.save is not None and plan.load is not None and Path(plan.load).resolve() != Path(plan.save).resolve()
    own = find_checkpoint(Path(plan.save)) if plan.resume == "auto" and plan.save is not None and apart else None
    if own is not None:
        return own, True
    return None if plan.load is None else find_checkpoint(Path(plan.load)), False


def require_checkpoint(plan: CheckpointPlan, folder: Path | None) -> None:
    """Raises CheckpointError where `folder`, what a run begins from, is none and must be one."""
    if folder is None and plan.load is not None and plan.resume != "auto":
        raise CheckpointError(
            f"{plan.load}: no checkpoint to resume from",
            hint="use `--resume auto` to start anew when there is none, or take `load` out of the config",
        )


def find_checkpoint(folder: Path) -> Path | None:
    """The checkpoint that `folder` stands for: itself if it is one, else the one its file `latest` names.

    Should that one be gone, or `latest` not be there since the first save was killed just before it, the newest
    checkpoint in the folder: it gets its name when all that is in it is on disk. None when there is none. Raises
    CheckpointError when `latest` is not a name that we write, and for a checkpoint of another library.
    """
    if (folder / MANIFEST).is_file():
        return folder
    name = _latest(folder)
    if name is None or not STEP_FOLDER.fullmatch(name):
        newest = next(iter(step_folders(folder)), None)
        if newest is None:
            refuse_foreign(folder)
        if name is not None:
            hint = f"delete {LATEST}: without it the newest checkpoint is taken"
            raise CheckpointError(f"{folder / LATEST}: {name[:80]!r} is no checkpoint's name", hint=hint)
        return newest
    if (folder / name / MANIFEST).is_file():
        return folder / name
    return next(iter(step_folders(folder)), None)


def step_folders(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, newest first; none when there is no such folder."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if STEP_FOLDER.fullmatch(path.name) and (path / MANIFEST).is_file()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")), reverse=True)


def step_of(folder: Path) -> int:
    """The step of a checkpoint, by its name; 0 of one that has been given another."""
    named = STEP_FOLDER.fullmatch(folder.name)
    return int(named[1]) if named is not None else 0


def read_object(path: Path, most: int = MOST_BYTES) -> dict[str, Any]:
    """A JSON object of a file of `most` bytes or fewer. Raises CheckpointError for anything else."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise CheckpointError(f"{path}: cannot be read: it is not a file")
        if found.st_size > most:
            raise CheckpointError(f"{path}: has {found.st_size} bytes, more than the {most} that such a file may have")
        with path.open("rb") as file:
            raw = json.loads(file.read(most))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path}: not a JSON object")
    return raw


def refuse_foreign(folder: Path) -> None:
    """Raises CheckpointError for a checkpoint of GPT-NeoX or transformers, or a folder of such, with the way to it."""
    steps = [path for path in folder.glob("global_step*") if _NEOX_STEP.fullmatch(path.name)] if folder.is_dir() else []
    files = any(next(each.glob(files), None) for each in (folder, *steps) for files in _NEOX_FILES)
    if files or _NEOX_STEP.fullmatch(_latest(folder) or ""):
        raise CheckpointError(
            f"{folder}: holds checkpoints of GPT-NeoX, which are pickles and cannot be loaded",
            hint="convert one with GPT-NeoX's tools/ckpts/convert_neox_to_hf.py, then run"
            " `neox checkpoint import-hf CONVERTED --out NEW` and load NEW with finetune: true",
        )
    weights = ("*.safetensors", "pytorch_model*.bin")
    if (folder / "config.json").is_file() and any(next(folder.glob(files), None) for files in weights):
        raise CheckpointError(
            f"{folder}: holds a checkpoint of transformers",
            hint=f"run `neox checkpoint import-hf {folder} --out NEW` and load NEW with finetune: true",
        )


def _latest(folder: Path) -> str | None:
    """What `latest` says; None where it is not there."""
    path = folder / LATEST
    try:
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path}: cannot be read: it is not a file", hint="move it away")
        with path.open("rb") as file:
            return file.read(_LONGEST_NAME).decode("utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error

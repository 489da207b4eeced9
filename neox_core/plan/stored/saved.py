"""Finds the checkpoint in a folder, its origin, and the run that wrote it. Reads names, `latest`, and sealed JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neox_core.errors import CheckpointError, NeoxError
from neox_core.files import sha256_of
from neox_core.plan.stored.earlier import as_today
from neox_core.untrusted import MOST_BYTES, parse_object, read_file, read_object

if TYPE_CHECKING:
    from neox_core.plan.runfile import CheckpointPlan

MANIFEST, RUN, STATE, LATEST = "manifest.json", "run.json", "state.json", "latest"
STEP_FOLDER = re.compile(r"step-(\d{8,})")
SEAL = "sha256"
_SEALED = re.compile(rb'\{"%s":"([0-9a-f]{64})",' % SEAL.encode())
_LATEST = re.compile(r"(?P<name>step-\d{8,19})(\n(?P<sha256>[0-9a-f]{64})  (?P=name)/manifest\.json)?\n?")
_WITHOUT_LATEST = f"delete {LATEST}: without it the newest checkpoint is taken"
_NEOX_STEP = re.compile(r"global_step\d+")
_NEOX_FILES = ("mp_rank_*_model_states.pt", "layer_*-model_*-model_states.pt")
DAMAGED = "the checkpoint is damaged: delete its folder to continue from the one before, or load another one"
MOST_MANIFEST = 32 * MOST_BYTES
"""Largest size in bytes: a manifest has a line for each rank's part of each tensor."""
RANKS_OF_A_FOLDER = 256
"""Ranks whose files share a folder: those of the first ranks are beside the manifest."""
_LONGEST_NAME = 4096
"""Largest number of bytes read of `latest`: a name is far shorter."""


def require_checkpoint(plan: CheckpointPlan, folder: Path | None) -> None:
    """Raises CheckpointError where a run must start from a checkpoint and `folder` is None."""
    if folder is None and plan.load is not None and plan.resume != "auto":
        said = f"{plan.load}: no checkpoint to resume from"
        hint = "use `--resume auto` to start at step 0 when there is none, or remove `load` from the config"
        raise CheckpointError(said, hint=hint)


def find_checkpoint(folder: Path) -> Path | None:
    """The checkpoint in `folder`: the folder itself if it is one, else the one that its file `latest` names.

    If that one is gone, or `latest` is missing because the first save was killed just before writing it, the newest
    checkpoint in the folder: a checkpoint gets its name when it is complete on disk. None when there is none. Raises
    CheckpointError when `latest` is not a name that neox writes, and for a checkpoint of another library.
    """
    if (folder / MANIFEST).is_file():
        return folder
    text = _latest(folder)
    said = None if text is None else _LATEST.fullmatch(text)
    newest = next(iter(step_folders(folder)), None)
    if said is None:
        if newest is None:
            refuse_foreign(folder)
        if text is not None:
            message = f"{folder / LATEST}: {text[:80]!r} is not the name of a checkpoint"
            raise CheckpointError(message, hint=_WITHOUT_LATEST)
        return newest
    named = folder / said["name"]
    if not (named / MANIFEST).is_file():
        return newest
    if said["sha256"] and file_digest(named / MANIFEST) != said["sha256"]:
        message = f"{folder / LATEST}: {named.name}/{MANIFEST} is not the file that was written"
        raise CheckpointError(message, hint=_WITHOUT_LATEST)
    return named


def latest_name(folder: Path) -> str | None:
    """The checkpoint that `latest` names; None where it is missing, or not a name that neox writes."""
    said = _LATEST.fullmatch(_latest(folder) or "")
    return said["name"] if said else None


def latest_text(checkpoint: Path) -> str:
    """The text of `latest` for a checkpoint: its name, then the checksum of its manifest as `sha256sum` prints it."""
    return f"{checkpoint.name}\n{file_digest(checkpoint / MANIFEST)}  {checkpoint.name}/{MANIFEST}\n"


def file_digest(path: Path) -> str:
    """SHA-256 of a manifest. Raises CheckpointError."""
    return sha256_of(read_file(path, CheckpointError, MOST_MANIFEST))


def step_folders(folder: Path) -> list[Path]:
    """The checkpoints in `folder`, newest first; empty when the folder does not exist."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if STEP_FOLDER.fullmatch(path.name) and (path / MANIFEST).is_file()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")), reverse=True)


def step_of(folder: Path) -> int:
    """The step of a checkpoint, by its name; 0 for a renamed one."""
    named = STEP_FOLDER.fullmatch(folder.name)
    return int(named[1]) if named is not None else 0


def read_run(folder: Path, error: type[NeoxError] = CheckpointError) -> dict[str, Any]:
    """run.json of a run's folder, or of a checkpoint. Raises as `read_stored`."""
    return read_stored(folder, RUN, error=error)[0]


def read_stored(folder: Path, *names: str, error: type[NeoxError] = CheckpointError) -> list[dict[str, Any]]:
    """JSON files of a run's folder, or of a checkpoint, where they must match the manifest, which can be one of them.

    Raises `error` for a file that cannot be read, CheckpointError for one that was changed.
    """
    if not (folder / MANIFEST).exists():
        return [_content(name, read_object(folder / name, error)) for name in names]
    manifest = read_sealed(folder / MANIFEST)[0]
    seals, found = manifest.get("files"), []
    for name in names:
        if name == MANIFEST:
            found.append(manifest)
            continue
        path, seal = folder / name, seals.get(name) if isinstance(seals, dict) else None
        if not isinstance(seal, dict):
            raise CheckpointError(f"{folder / MANIFEST}: names no checksum for {name}", hint=DAMAGED)
        data = read_file(path, CheckpointError)
        if (len(data), sha256_of(data)) != (seal.get("size"), seal.get("sha256")):
            raise CheckpointError(f"{path}: wrong checksum, the file was changed after it was written", hint=DAMAGED)
        found.append(_content(name, parse_object(data, path, error)))
    return found


def _content(name: str, content: dict[str, Any]) -> dict[str, Any]:
    return as_today(content) if name == RUN else content


def sealed(content: dict[str, Any]) -> bytes:
    """JSON that starts with the SHA-256 of all bytes after it."""
    rest = json.dumps(content, separators=(",", ":"))[1:].encode() + b"\n"
    return b'{"%s":"%s",' % (SEAL.encode(), sha256_of(rest).encode()) + rest


def read_sealed(path: Path) -> tuple[dict[str, Any], bool]:
    """The content of a file that `sealed` made, and whether it has a checksum: earlier versions wrote none.

    Raises CheckpointError for a file that was changed after it was written.
    """
    data = read_file(path, CheckpointError, MOST_MANIFEST)
    content = parse_object(data, path, CheckpointError)
    if content.pop(SEAL, None) is None:
        return content, False
    found = _SEALED.match(data)
    if found is None or sha256_of(data[found.end() :]).encode() != found[1]:
        raise CheckpointError(f"{path}: wrong checksum, the file was changed after it was written", hint=DAMAGED)
    return content, True


def rank_folder(rank: int) -> str:
    """Where the files of a rank lie in a checkpoint: "", or the name of a folder with a slash."""
    return f"ranks-{rank // RANKS_OF_A_FOLDER:05d}/" if rank >= RANKS_OF_A_FOLDER else ""


def rank_note(folder: Path, rank: int) -> Path:
    """The file that tells the first rank what another one has written."""
    return folder / rank_folder(rank) / f".rank-{rank:05d}.json"


def refuse_foreign(folder: Path) -> None:
    """Raises CheckpointError for a checkpoint of GPT-NeoX or transformers, or a folder of such, with the way to it."""
    steps = [path for path in folder.glob("global_step*") if _NEOX_STEP.fullmatch(path.name)] if folder.is_dir() else []
    files = any(next(each.glob(files), None) for each in (folder, *steps) for files in _NEOX_FILES)
    if files or _NEOX_STEP.fullmatch((_latest(folder) or "").strip()):
        hint = f"run `neox checkpoint import-neox {folder} --out NEW`, then train NEW/config.yml with load: NEW"
        said = f"{folder}: holds checkpoints of GPT-NeoX, which a run cannot load as they are"
        raise CheckpointError(said, hint=hint)
    weights = ("*.safetensors", "pytorch_model*.bin")
    if (folder / "config.json").is_file() and any(next(folder.glob(files), None) for files in weights):
        hint = f"run `neox checkpoint import-hf {folder} --out NEW` and load NEW with finetune: true"
        raise CheckpointError(f"{folder}: holds a checkpoint of transformers", hint=hint)


def _latest(folder: Path) -> str | None:
    """The text of `latest`; None where it is missing."""
    path = folder / LATEST
    try:
        if path.exists() and not path.is_file():
            raise CheckpointError(f"{path}: cannot be read: it is not a file", hint="move it away")
        with path.open("rb") as file:
            return file.read(_LONGEST_NAME).decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error

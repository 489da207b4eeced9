"""The work of `neox checkpoint average`: a checkpoint with the average in place of the weights."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from torch import Tensor

from neox_core.checkpoint.publish import cannot_write, publish, write_manifest
from neox_core.checkpoint.read import CheckpointReader
from neox_core.checkpoint.write import RankContents, write_rank
from neox_core.errors import CheckpointError, run_main
from neox_core.plan.stored.saved import RUN, find_checkpoint
from neox_core.terminal import echo, echo_json
from neox_ema.average import STATE

CALLBACK = "neox-ema:ema"
FILE_BYTES = 1 << 30
"""Tensors that are held and written at once, beside one more."""


def write_average(folder: Path, out: Path, file_bytes: int = FILE_BYTES) -> Path:
    """Write the average in a checkpoint as weights of a new one in `out`, and return its folder.

    folder: of one checkpoint, or of a run. A few tensors are in memory at a time. Raises CheckpointError; what was
    written until then is removed.
    """
    checkpoint = find_checkpoint(folder)
    if checkpoint is None:
        raise CheckpointError(f"{folder}: no checkpoint here", hint="name the folder that the config calls `save`")
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise CheckpointError(f"{out}: exists already", hint="name another folder, or remove it")
    except OSError as error:
        raise cannot_write(out, error) from error
    reader = CheckpointReader(checkpoint)
    reader.verify(lambda _, file: ".rng." not in file)
    state = reader.state()
    _require_average(reader, state)
    state["state"]["callbacks"] = {}
    name = f"step-{reader.manifest.step:08d}"
    written = out / f".{name}.tmp"
    try:
        written.mkdir(parents=True)
        files = _write(reader, written, file_bytes)
        run = (checkpoint / RUN).read_text(encoding="utf-8")
        write_manifest(written, reader.manifest.step, files, run, state, optimizer=False, rng=False)
        publish(written, out / name)
    except OSError as error:
        raise cannot_write(out, error) from error
    finally:
        shutil.rmtree(written, ignore_errors=True)
    return out / name


def _require_average(reader: CheckpointReader, state: dict[str, Any]) -> None:
    """Raises CheckpointError for a checkpoint without an average of its own step."""
    progress = state.get("state")
    callbacks = progress.get("callbacks") if isinstance(progress, dict) else None
    kept = callbacks.get(CALLBACK) if isinstance(callbacks, dict) else None
    if not isinstance(kept, dict):
        raise CheckpointError(f"{reader.folder}: its run kept no average", hint="train with ema: {enabled: true}")
    if kept.get("step") != reader.manifest.step or not reader.manifest.has_optimizer:
        raise CheckpointError(
            f"{reader.folder}: its average is not of step {reader.manifest.step}: a run without ema wrote it",
            hint="name a checkpoint that a run with ema wrote",
        )


def _write(reader: CheckpointReader, folder: Path, file_bytes: int) -> int:
    """Returns the number of files."""
    contents, held, files = RankContents(0), 0, 0
    for kind in ("buffer", "weight"):
        for name in reader.shapes(kind):
            tensor = reader.tensor(kind, name)
            if kind == "weight":
                tensor = _average(reader, name, tensor)
            contents.add("weights", kind, name, tensor.contiguous())
            held += tensor.nbytes
            if held >= file_bytes:
                write_rank(folder, contents)
                files += 1
                contents, held = RankContents(files), 0
    if held or not files:
        write_rank(folder, contents)
        files += 1
    return files


def _average(reader: CheckpointReader, name: str, weight: Tensor) -> Tensor:
    """The average of a weight in the type of the weight; the weight itself where no update has changed it."""
    return reader.tensor("state", name, STATE).to(weight.dtype) if STATE in reader.states(name) else weight


def main() -> None:
    """`python -m neox_ema.export JSON`: folder, out, as_json."""
    raw = json.loads(sys.argv[1])
    wrote = str(write_average(Path(raw["folder"]), Path(raw["out"])))
    if raw["as_json"]:
        echo_json({"wrote": wrote})
    else:
        echo(f"wrote {wrote}")


if __name__ == "__main__":
    run_main(main)

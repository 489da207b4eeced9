"""The work of `neox checkpoint import`, in a process that imports torch."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve

from neox_checkpoints.contracts import CheckpointFormat, ForeignCheckpoint
from neox_checkpoints.write import FILE_BYTES, config_text, require_empty, write_checkpoint
from neox_core.checkpoint.publish import cannot_write
from neox_core.config.problem import Problem
from neox_core.config.read.load import load
from neox_core.config.report import ProblemsError
from neox_core.errors import run_main
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import RunPlan
from neox_core.terminal import echo, echo_json, one_line

CONFIG = "config.yml"


def import_checkpoint(
    folder: Path,
    out: Path,
    form: CheckpointFormat,
    catalog: Catalog,
    configs: Sequence[Path] = (),
    *,
    optimizer: bool = True,
    file_bytes: int = FILE_BYTES,
) -> tuple[Path, ForeignCheckpoint]:
    """Write `out`/config.yml and a checkpoint beside it, or nothing. Raises CheckpointError, and ConfigError for keys
    that this environment cannot plan.
    """
    require_empty(out)
    found = form.open(folder, configs, optimizer=optimizer)
    text = config_text(one_line(str(folder)), found.keys, found.comments)
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch) / CONFIG
        config.write_text(text, encoding="utf-8")
        try:
            plan = _plan(config, found, catalog)
        except ProblemsError as error:
            raise ProblemsError(_placed(error.problems, folder, found)) from None
    there = out.exists()
    try:
        final = write_checkpoint(out, found, plan, file_bytes)
        (out / CONFIG).write_text(text, encoding="utf-8")
    except OSError as error:
        raise cannot_write(out, error) from error
    finally:
        if not (out / CONFIG).exists():
            for left in out.glob("*") if there else ():
                shutil.rmtree(left, ignore_errors=True)
            if not there:
                shutil.rmtree(out, ignore_errors=True)
    return final, found


def _plan(config: Path, found: ForeignCheckpoint, catalog: Catalog) -> RunPlan:
    """The plan of the run, where fp16 is wanted as if on a GPU, since a checkpoint may be imported elsewhere."""
    cluster = "1x1" if "fp16" in found.keys else None
    plan = prepare_run([config], catalog=catalog, start=False, cluster=cluster).plan
    return evolve(plan, checkpoint=evolve(plan.checkpoint, save=None, load=None))


def _placed(problems: Iterable[Problem], folder: Path, found: ForeignCheckpoint) -> Iterator[Problem]:
    """Problems of the config at hand, which is gone by now, in the run's own files; else of the checkpoint."""
    files = getattr(found, "files", ())
    places = {path.replace("-", "_"): place.where for path, place in load(files).places.items()} if files else {}
    for each in problems:
        key = each.key.replace("-", "_")
        where = places.get(key) or places.get(key.partition(".")[0]) or f"{folder}, in the config that follows from it"
        yield evolve(each, where=where)


def find_format(folder: Path, catalog: Catalog, name: str | None) -> CheckpointFormat:
    """The format of a folder: the one that is named, or the first that recognises it."""
    from neox_core.errors import CheckpointError

    entries = [catalog.find("checkpoint format", name)] if name else catalog.registry.entries("checkpoint format")
    for entry in entries:
        form: CheckpointFormat = entry.load()()
        if name or form.recognises(folder) is not None:
            return form
    raise CheckpointError(
        f"{folder}: no format that is installed recognises it", hint="`neox checkpoint inspect` says what a folder is"
    )


def main() -> None:
    """`python -m neox_checkpoints.importing JSON`: folder, out, format, configs, optimizer, as_json."""
    raw: dict[str, Any] = json.loads(sys.argv[1])
    catalog, out = load_plugins(), Path(raw["out"])
    form = find_format(Path(raw["folder"]), catalog, raw["format"])
    configs = [Path(each) for each in raw["configs"]]
    final, found = import_checkpoint(Path(raw["folder"]), out, form, catalog, configs, optimizer=raw["optimizer"])
    if raw["as_json"]:
        notes = [str(note) for note in found.notes]
        echo_json(
            {"wrote": str(final), "config": str(out / CONFIG), "has_optimizer": found.has_optimizer, "notes": notes}
        )
        return
    for note in found.notes:
        echo(f"note: {note}", err=True)
    echo(f"wrote {final}")
    weights_alone = "" if found.has_optimizer else " --set no-load-optim=true"
    echo(f"continue with: neox train {out / CONFIG} --set load={out}{weights_alone}")


if __name__ == "__main__":
    run_main(main)

"""The check of a checkpoint format: an example of its program's checkpoints, whole and damaged."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neox_author.testing.clauses import check_light, clauses, has, hold, not_applicable
from neox_author.testing.resolved import completed

from neox_checkpoints.contracts import ImportedProgress
from neox_checkpoints.importing import import_checkpoint
from neox_core.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from neox_checkpoints.contracts import ForeignCheckpoint
    from neox_core.hooks.catalog import Catalog

DAMAGES = "a file that is missing or cut off is a CheckpointError"
IMPORTS = "what it gives becomes a checkpoint of neox, with each parameter of the model once"


@clauses
def check_checkpoint_format(catalog: Catalog, name: str) -> None:
    """Raises AssertionError with the clause of `neox_checkpoints.api.CheckpointFormat` that does not hold.

    Most clauses need a checkpoint, which `write_example` of the format writes.
    """
    entry = catalog.find("checkpoint format", name)
    check_light(entry.component.target)
    form = entry.load()()
    has(form, "a checkpoint format", "recognises", "open")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "other")
        hold(form.recognises(folder) is None, "recognises() gives None for a folder that is not there")
        folder.mkdir()
        (folder / "notes.txt").write_text("not a checkpoint", "utf-8")
        hold(form.recognises(folder) is None, "recognises() gives None for a folder of something else")
        _refused(form, folder, "open() raises CheckpointError for a folder of something else")
        if not hasattr(form, "write_example"):
            not_applicable(IMPORTS, "it has no `write_example`")
            return
        example = Path(temporary, "example")
        example.mkdir()
        form.write_example(example)
        said = form.recognises(example)
        hold(isinstance(said, str) and said and "\n" not in said, "recognises() tells in one line what a folder holds")
        for optimizer in (True, False):
            _check_opened(form.open(example, (), optimizer=optimizer), optimizer=optimizer)
        _check_imported(form, example, Path(temporary), completed(catalog))
        _check_damaged(form, example, Path(temporary), completed(catalog))


def _refused(form: Any, folder: Path, clause: str) -> None:
    try:
        form.open(folder, (), optimizer=True)
    except CheckpointError:
        hold(True, clause)
    else:
        hold(False, clause)


def _check_opened(found: ForeignCheckpoint, *, optimizer: bool) -> None:
    hold(json.loads(json.dumps(dict(found.keys))) == dict(found.keys), "`keys` is what a config can hold")
    hold(found.comments.keys() <= found.keys.keys(), "`comments` are on keys that are there")
    hold(all(isinstance(each, str) for each in found.notes), "`notes` are lines")
    hold(isinstance(found.progress, ImportedProgress), "`progress` is an ImportedProgress")
    hold(isinstance(found.has_optimizer, bool), "`has_optimizer` is True or False")
    hold(optimizer or not found.has_optimizer, "`has_optimizer` is False where the state is not wanted")


def _check_imported(form: Any, example: Path, temporary: Path, catalog: Catalog) -> None:
    from neox_core.checkpoint.read import CheckpointReader

    try:
        final, found = import_checkpoint(example, temporary / "imported", form, catalog)
        reader = CheckpointReader(final)
        reader.verify()
    except (CheckpointError, ConfigError) as error:
        raise AssertionError(f"{IMPORTS}; {error.message}") from error
    pieces = reader.manifest.pieces
    weights = [each.name for each in pieces if each.kind == "weight"]
    hold(len(weights) == len({*weights}) > 0, IMPORTS)
    states = any(each.kind == "state" for each in pieces)
    hold(states == found.has_optimizer, "`has_optimizer` says whether `tensors` gives the state of the optimizer")
    _check_model(final, {each.name: tuple(each.shape) for each in pieces if each.kind == "weight"}, catalog)


def _check_model(final: Path, weights: dict[str, tuple[int, ...]], catalog: Catalog) -> None:
    from neox_gpt.api import load_run, saved_run

    try:
        model = load_run(saved_run(final, catalog)[1], final).model
        own = {name: tuple(each.shape) for name, each in model.named_parameters()}
    except (CheckpointError, ConfigError) as error:
        raise AssertionError(f"{IMPORTS}; {error.message}") from error
    differ = sorted(dict(own.items() ^ weights.items()))
    hold(not differ, f"{IMPORTS}; not so {differ[:1]}")


def _check_damaged(form: Any, example: Path, temporary: Path, catalog: Catalog) -> None:
    for file in sorted(each for each in example.rglob("*") if each.is_file()):
        for cut in (None, 0, file.stat().st_size // 2):
            damaged, out = temporary / "damaged", temporary / "out"
            shutil.copytree(example, damaged)
            place = damaged / file.relative_to(example)
            if cut is None:
                place.unlink()
            else:
                place.write_bytes(file.read_bytes()[:cut])
            try:
                import_checkpoint(damaged, out, form, catalog)
            except CheckpointError:
                hold(not out.exists(), DAMAGES)
            else:
                hold(False, f"{DAMAGES}; not so {file.name}, {'missing' if cut is None else f'{cut} bytes of it'}")
            shutil.rmtree(damaged)

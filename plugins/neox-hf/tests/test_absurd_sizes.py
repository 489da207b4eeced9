"""`neox checkpoint export-hf` of checkpoints whose run.json holds an absurd number in the place of another."""

import contextlib
import copy
import hashlib
import json
import os
import resource
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from attrs import evolve
from families import MODELS, imported_to, roughened
from neox_gpt.api import gpt_plan_in, saved_run
from neox_hf.export import as_read, choose_family, export_hf

from neox_core.errors import NeoxError, in_words
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.component import load_path
from neox_core.hooks.loader import load_plugins
from neox_core.plan.runfile import with_components
from neox_core.plan.stored.saved import MANIFEST, RUN, read_sealed, sealed

ABSURD = (10**9, 10**14)
SECONDS, MEMORY = 10, 3 * 2**30
"""Processor time and further memory that an export of a few kilobytes may take."""
SAID, WRITTEN, KILLED = 0, 1, 2


def numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in run.json a number or null is."""
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(each, (*path, key))
    elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        yield path


def reseal(checkpoint: Path, run: Any) -> None:
    text = json.dumps(run).encode()
    (checkpoint / RUN).write_bytes(text)
    manifest = read_sealed(checkpoint / MANIFEST)[0]
    manifest["files"][RUN] = {"size": len(text), "sha256": hashlib.sha256(text).hexdigest()}
    (checkpoint / MANIFEST).write_bytes(sealed(manifest))


def exported(checkpoint: Path, out: Path, catalog: Catalog) -> int:
    """What becomes of one export in a process that dies where it takes too much."""
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        code = KILLED
        try:
            found, plan = saved_run(checkpoint, catalog)
            families = {
                each.component.name: load_path(each.component.target)()
                for each in catalog.registry.entries("model family")
            }
            plan = evolve(plan, model=with_components(plan.model, as_read))
            export_hf(found, plan, out, choose_family(gpt_plan_in(plan), families))
            code = WRITTEN
        except (NeoxError, OSError, ImportError) as error:
            code = SAID if in_words(error) is not None and "allocate" not in str(error) else KILLED
        except BaseException:  # noqa: BLE001  also MemoryError: too much was asked for
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_each_is_exported_or_refused(tmp_path: Path) -> None:
    """Alone where exports read it, which is in the model; all that a checkpoint may hold elsewhere at once."""
    torch.manual_seed(5)
    roughened(MODELS["llama"]()).save_pretrained(tmp_path / "theirs")
    imported_to(tmp_path / "theirs", tmp_path / "ours")
    (checkpoint,) = (tmp_path / "ours").glob("step-*")
    catalog, whole = load_plugins(), json.loads((checkpoint / RUN).read_text())
    ends: dict[str, int] = {}
    for number in ABSURD:
        elsewhere = whole
        for path in numbers(whole):
            run = changed(whole, path, number)
            reseal(checkpoint, run)
            if path[0] == "model":
                ends[f"{path} = {number}"] = exported(checkpoint, tmp_path / f"out{len(ends)}", catalog)
            else:
                with contextlib.suppress(NeoxError):
                    saved_run(checkpoint, catalog)
                    elsewhere = changed(elsewhere, path, number)
        assert elsewhere != whole
        reseal(checkpoint, elsewhere)
        ends[f"elsewhere {number}"] = exported(checkpoint, tmp_path / f"out{len(ends)}", catalog)
    assert {case: end for case, end in ends.items() if end not in (SAID, WRITTEN)} == {}
    assert {*ends.values()} == {SAID, WRITTEN}


def changed(run: Any, path: tuple[Any, ...], number: int) -> Any:
    """A copy of run.json with the number at one place."""
    run = copy.deepcopy(run)
    inside = run
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = number
    return run

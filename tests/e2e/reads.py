"""Which fields of its plan a rank reads: `python reads.py OUT '{"name": "path of run.json", ...}'`.

Each run is a fork of this process. `OUT/name.json` holds the fields of each class of the plan, and of the settings of
each of its components: true for those that code outside the plan has read. `engine` there are those of the values for
the engine that it, or DeepSpeed behind its reader of configs, has read.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs
from attrs import evolve
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.config_utils import DeepSpeedConfigModel, DeepSpeedConfigObject
from forks import forked
from layouts import warm_up
from neox_author.testing.ports import free_port

from neox_core.config.schema.convert import block_of
from neox_core.hooks.component import load_path
from neox_core.plan.runfile import ComponentRef, RunPlan, components_of, noting, read_runfile
from neox_core.run.run import run
from neox_core.run.startup import Startup

UNCOUNTED = ("neox_core.plan", "neox_core.config", "attr", "cattr", "copy", "__main__", "neox_core.run.digests")
"""Code that reads every field, whatever it means: what writes, compares and copies a plan."""
READERS = (
    *("pydantic", "deepspeed.runtime.config", "deepspeed.runtime.precision_config", "deepspeed.runtime.zero.config"),
    *("deepspeed.profiling.config", "deepspeed.comm.config"),
)
"""DeepSpeed's code that does so with its config."""
HANDS_ON = "dynamic_loss_scale_args"
"""A function in it that gives what it reads to DeepSpeed's scaler."""
BLOCKS = {
    "DeepSpeedConfig": "",
    "DeepSpeedBF16Config": "bf16",
    "DeepSpeedFP16Config": "fp16",
    "DeepSpeedZeroConfig": "zero_optimization",
    "DeepSpeedZeroOffloadParamConfig": "zero_optimization.offload_param",
    "DeepSpeedZeroOffloadOptimizerConfig": "zero_optimization.offload_optimizer",
    "DeepSpeedFlopsProfilerConfig": "flops_profiler",
    "CommsLoggerConfig": "comms_logger",
}
"""DeepSpeed's class -> the block that it was read from."""
OTHER_NAMES = {
    "grad_accum_dtype": "data_types.grad_accum_dtype",
    "zero_optimization_stage": "zero_optimization.stage",
}


def classes_of(value: Any) -> Iterator[type]:
    """The attrs classes of the objects inside a plan, and of the settings of its components."""
    if attrs.has(type(value)):
        yield type(value)
        for each in attrs.fields(type(value)):
            yield from classes_of(getattr(value, each.name))
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from classes_of(inner)
    elif isinstance(value, dict):
        yield from classes_of(tuple(value.values()))


def classes_in(plan: RunPlan) -> set[type]:
    settings = (load_path(each.settings_class) for each in components_of(plan) if each.settings_class)
    return {*classes_of(plan), *(each for kind in settings for each in blocks_in(kind))} - {ComponentRef}


def blocks_in(kind: type) -> Iterator[type]:
    """A class of settings, and those of the blocks inside of it."""
    yield kind
    for each in attrs.fields(kind):
        inner = block_of(each.type)
        if inner is not None:
            yield from blocks_in(inner)


def reader(depth: int = 2) -> str:
    """The module that asks for a field, by itself or through attrs. depth: how many calls there are to here.

    What attrs has written for a class is attrs: it reads each field that has a check, and to compare.
    """
    frame = sys._getframe(depth)
    if frame.f_code.co_filename.startswith("<attrs generated"):
        return "attr"
    while frame.f_globals.get("__name__", "").startswith("attr") and frame.f_back is not None:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


def watch(kind: type, seen: set[tuple[str, str]]) -> None:
    names = {each.name for each in attrs.fields(kind)}
    real = kind.__getattribute__

    def reading(self: Any, name: str) -> Any:
        if name in names and not reader().startswith(UNCOUNTED):
            seen.add((type(self).__name__, name))
        return real(self, name)

    kind.__getattribute__ = reading  # type: ignore[method-assign,assignment]  # in this process


class Values(dict[str, Any]):
    """Values for the engine that note which of them our own code reads, by their path."""

    def __init__(self, values: dict[str, Any], seen: set[str], path: str = "") -> None:
        inner = {
            name: Values(each, seen, f"{path}{name}.") if isinstance(each, dict) else each
            for name, each in values.items()
        }
        super().__init__(inner)
        self._seen, self._path = seen, path

    def __getitem__(self, name: str) -> Any:
        self._note(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._note(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self._note(name)
        return super().__contains__(name)

    def _note(self, name: object) -> None:
        asking = reader(3)
        if asking.startswith("neox_") and not asking.startswith(UNCOUNTED):
            self._seen.add(f"{self._path}{name}")


def watch_deepspeed(seen: set[str]) -> None:
    """Note which fields of its configs DeepSpeed reads, apart from the code that makes them."""
    for kind in (DeepSpeedConfig, DeepSpeedConfigModel, DeepSpeedConfigObject):
        real = kind.__getattribute__

        def reading(self: Any, name: str, real: Any = real) -> Any:
            block = BLOCKS.get(type(self).__name__)
            acts = not reader().startswith(READERS) or sys._getframe(1).f_code.co_name == HANDS_ON
            if block is not None and acts:
                for known in (name, f"stage3_{name}"):
                    seen.add(OTHER_NAMES.get(known, f"{block}.{known}".lstrip(".")))
            return real(self, name)

        kind.__getattribute__ = reading


def import_all(plan: Any) -> None:
    """What the components of a plan are, once for all forks."""
    if isinstance(plan, list | dict):
        paths = plan if isinstance(plan, dict) and "settings_class" in plan else {}
        for path in (paths.get("target"), paths.get("settings_class"), paths.get("planner")):
            if path is not None:
                load_path(path)
        for each in plan.values() if isinstance(plan, dict) else plan:
            import_all(each)


def rank_main(file: Path, out: Path) -> None:
    port = free_port()
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    plan = read_runfile(file, hashlib.sha256(file.read_bytes()).hexdigest())
    seen: set[tuple[str, str]] = set()
    classes = classes_in(plan)
    for kind in classes:
        watch(kind, seen)
    sys.stdout = file.with_name("said.txt").open("w")
    ledger: set[str] = set()
    of_engine: set[str] = set()
    watch_deepspeed(of_engine)
    noted = evolve(noting(plan, ledger), engine=Values(plan.engine, of_engine))
    run(noted, noted.engine_component.load()[0](noted), Startup(0.0), ledger)
    names = {kind.__name__: [each.name for each in attrs.fields(kind)] for kind in classes}
    read = {kind: {name: (kind, name) in seen for name in fields} for kind, fields in names.items()}
    read["engine"] = dict.fromkeys(sorted(of_engine), True)
    out.write_text(json.dumps(read))


def main() -> None:
    warm_up()
    # DeepSpeed takes fp16 on a CPU only where its instructions do; on the others it is slow, and right.
    get_accelerator().is_fp16_supported = lambda: True
    out, files = Path(sys.argv[1]), json.loads(sys.argv[2])
    for file in files.values():
        import_all(json.loads(Path(file).read_text()))
    for name, file in files.items():
        if os.waitpid(forked(partial(rank_main, Path(file), out / f"{name}.json")), 0)[1]:
            sys.stderr.write(f"the run {name} failed\n")
            os._exit(1)
    os._exit(0)  # gloo's threads, and what libraries say of themselves when they are torn down


if __name__ == "__main__":
    main()

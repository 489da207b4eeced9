"""Which fields of its plan a rank reads: `python reads.py OUT '{"name": "path of run.json", ...}'`.

Each run is a fork of this process. `OUT/name.json` holds the fields of each class of the plan, and of the settings of
each of its components: true for those that code outside the plan has read.
"""

import hashlib
import json
import os
import socket
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
from layouts import warm_up

from neox_core.hooks.component import load_path
from neox_core.ledger import Ledger
from neox_core.plan.runfile import ComponentRef, RunPlan, components_of, noting, read_runfile
from neox_core.run.run import run
from neox_core.run.startup import Startup

UNCOUNTED = ("neox_core.plan", "neox_core.config", "cattr", "copy", "__main__", "neox_core.run.digests")
"""Code that reads every field, whatever it means: what writes, compares and copies a plan."""


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
    settings = {load_path(each.settings_class) for each in components_of(plan) if each.settings_class}
    return {*classes_of(plan), *settings} - {ComponentRef}


def reader() -> str:
    """The module that asks for a field, by itself or through attrs."""
    frame = sys._getframe(2)
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


def rank_main(file: Path, out: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    plan = read_runfile(file, hashlib.sha256(file.read_bytes()).hexdigest())
    seen: set[tuple[str, str]] = set()
    classes = classes_in(plan)
    for kind in classes:
        watch(kind, seen)
    sys.stdout = file.with_name("said.txt").open("w")
    ledger = Ledger()
    noted = noting(plan, ledger)
    run(noted, noted.engine_component.load()[0](noted), Startup(0.0), ledger)
    names = {kind.__name__: [each.name for each in attrs.fields(kind)] for kind in classes}
    read = {kind: {name: (kind, name) in seen for name in fields} for kind, fields in names.items()}
    out.write_text(json.dumps(read))


def main() -> None:
    warm_up()
    out = Path(sys.argv[1])
    for name, file in json.loads(sys.argv[2]).items():
        child = os.fork()
        if not child:
            code = 1
            try:
                rank_main(Path(file), out / f"{name}.json")
                code = 0
            finally:
                if code:
                    traceback.print_exc()
                sys.stderr.flush()
                os._exit(code)
        if os.waitpid(child, 0)[1]:
            sys.stderr.write(f"the run {name} failed\n")
            os._exit(1)
    os._exit(0)  # gloo's threads, and what libraries say of themselves when they are torn down


if __name__ == "__main__":
    main()

"""What can be observed of short runs: `python short_runs.py OUT '{"name": "path of run.json", ...}'`.

The first run is a rehearsal in this process, so that the others, each a fork of it in the folder of its run.json, have
imported, compiled and read what they need. `OUT/name.json` holds a value of each thing that was observed of them: the
fields of its metrics, its files and what they hold, what it said, how it ended. Times and paths are left out, and so is
what a checkpoint copies from the plan.
"""

import hashlib
import json
import os
import re
import sys
from functools import cache, cached_property, partial
from importlib import metadata
from pathlib import Path
from typing import Any

from forks import forked
from layouts import warm_up
from neox_author.testing.ports import free_port
from reads import import_all

from neox_core.plan.runfile import noting, read_runfile
from neox_core.run.run import run
from neox_core.run.startup import Startup

TIMED = re.compile(r"time$|_s$|_ms$|per_s|mfu|tflops|_gib$|_gb$|memory|_mib$")
"""Fields of metrics of which only the presence is observed."""
COPIED = ("schedule", "plugins", "neox_version")
"""What state.json repeats of the plan."""
SAID = "said.txt"
REPEATED = re.compile(r"^(step|start-up|mfu) .*\n", re.M)
"""Lines that say what the metrics hold, with times in them."""


def read_versions_once() -> None:
    """A run asks for the versions of a dozen packages, three times; each time their metadata would be parsed."""
    metadata.distribution = cache(metadata.distribution)
    found: Any = metadata.PathDistribution
    once = cached_property(found.metadata.fget)
    once.__set_name__(found, "metadata")
    found.metadata = once


def rank_main(file: Path, rank: int = 0, ranks: int = 1, port: int = 0) -> None:
    """One rank that runs the plan in `file`. port: 0: a free one, for a rank that is alone."""
    os.chdir(file.parent)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port or free_port())}
    plan = read_runfile(file, hashlib.sha256(file.read_bytes()).hexdigest())
    ledger = set()
    noted = noting(plan, ledger)
    finished = run(noted, noted.engine_component.load()[0](noted), Startup(0.0), ledger)
    sys.stdout.write(f"finished: {finished}\n")


def noted_run(file: Path, said_in: str = SAID, **place: int) -> None:
    """`rank_main`, whose words go to a file beside the plan."""
    said = os.open(file.with_name(said_in), os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    rank_main(file, **place)


def observed(folder: Path) -> dict[str, Any]:
    """What there is of a run whose folder this is."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = re.sub(r"\d{6,}", "N", str(path.relative_to(folder))) if "tfevents" in path.name else path.name
        where = str(path.relative_to(folder).parent / name)
        if path.is_dir() or path.name == "metrics.jsonl":
            found[where] = ""
        elif path.suffix == ".safetensors":
            found[where] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.name == "state.json":
            state = json.loads(path.read_text())
            found[where] = {key: value for key, value in state.items() if key not in COPIED}
        elif path.suffix in (".txt", ".csv", ".jsonl"):
            text = REPEATED.sub("", path.read_text(errors="replace").replace(str(folder), "FOLDER"))
            found[where] = re.sub(r"\d+(\.\d+)?(e[+-]\d+)?", "N", text)
        else:  # repeats the plan, or has times in it
            found[where] = ""
        if path.name == "metrics.jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            for field in sorted({field for line in lines for field in line}):
                values = [line.get(field) for line in lines]
                found[f"{where}: {field}"] = [v is None for v in values] if TIMED.search(field) else values
    return found


def main() -> None:
    warm_up()
    read_versions_once()
    out, files = Path(sys.argv[1]), json.loads(sys.argv[2])
    for file in files.values():
        import_all(json.loads(Path(file).read_text()))
    first = next(iter(files))
    noted_run(Path(files.pop(first)))
    for name, file in files.items():
        ended = os.waitpid(forked(partial(noted_run, Path(file))), 0)[1]
        seen = observed(Path(file).parent) | {"ended": ended}
        (out / f"{name}.json").write_text(json.dumps(seen))
    os._exit(0)  # gloo's threads, and what libraries say of themselves when they are torn down


if __name__ == "__main__":
    main()

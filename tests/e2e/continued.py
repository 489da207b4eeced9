"""Whole runs, one after the other: `python continued.py OUT '[[RANKS, "RUN/run.json"], ...]'`.

The ranks of a run are forked from here, so that nothing is imported again, and do what `neox train` has them do.
"""

import json
import os
import sys
import traceback
from pathlib import Path

from layouts import warm_up
from neox_author.testing.ports import free_port

from neox_core.plan.runfile import noting, read_runfile
from neox_core.run.run import run
from neox_core.run.startup import Startup


def rank_main(rank: int, ranks: int, port: int, file: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ledger = set()
    plan = noting(read_runfile(file, None), ledger)
    run(plan, plan.engine_component.load()[0](plan), Startup(0.0), ledger)


def forked(rank: int, ranks: int, port: int, file: Path) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        rank_main(rank, ranks, port, file)
        code = 0
    finally:
        if code:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    warm_up()
    for ranks, file in json.loads(sys.argv[2]):
        port = free_port()
        children = [forked(rank, ranks, port, Path(file)) for rank in range(ranks)]
        if ended := [code for child in children if (code := os.waitpid(child, 0)[1])]:
            sys.exit(f"{file}: ranks ended with {ended}")
    os._exit(0)  # without what libraries say of themselves when they are torn down


if __name__ == "__main__":
    main()

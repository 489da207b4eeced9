"""Whole runs, one after the other: `python continued.py OUT '[[RANKS, "RUN/run.json"], ...]'`.

The ranks of a run are forked from here, so that nothing is imported again, and do what `neox train` has them do.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

from forks import forked
from layouts import warm_up
from neox_author.testing.ports import free_port
from short_runs import rank_main


def main() -> None:
    warm_up()
    for ranks, file in json.loads(sys.argv[2]):
        port = free_port()
        children = [forked(partial(rank_main, Path(file), rank, ranks, port)) for rank in range(ranks)]
        if ended := [code for child in children if (code := os.waitpid(child, 0)[1])]:
            sys.exit(f"{file}: ranks ended with {ended}")
    os._exit(0)  # without what libraries say of themselves when they are torn down


if __name__ == "__main__":
    main()

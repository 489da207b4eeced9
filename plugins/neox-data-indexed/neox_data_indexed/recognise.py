"""Which data backends recognise a dataset: for `data-impl: infer`, where the first bytes of an index do not tell.

Reads the backends, as fields of ComponentRefs, and a prefix as JSON; writes the owners of those that recognise it.
"""

import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path

from neox_core.errors import NeoxError, run_main
from neox_core.plan.runfile import ComponentRef
from neox_core.terminal import echo, echo_json


def recognising(backends: list[ComponentRef], prefix: Path) -> list[str]:
    """The plugins and names of the backends; one that fails is named on stderr and recognises nothing."""
    found = []
    for backend in backends:
        try:
            made = backend.make()
            with backend.blamed():
                if made.recognises(prefix):
                    found.append(f"{backend.plugin}:{backend.name}")
        except NeoxError as error:
            echo(f"warning: {error.message}", err=True)
    return found


def main() -> None:
    """Write as JSON which of the backends on stdin recognise a dataset."""
    raw = json.loads(sys.stdin.read())
    with redirect_stdout(sys.stderr):
        found = recognising([ComponentRef(**each) for each in raw["backends"]], Path(raw["prefix"]))
    echo_json(found)
    sys.stdout.flush()
    os._exit(0)  # with any threads that a backend left running


if __name__ == "__main__":
    run_main(main)

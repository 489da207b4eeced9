"""`python -m neox_core.run.rank RUN_FILE`: one rank of a run, from its run file to its exit code.

The environment holds RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as every launcher sets them; the plan's
`local_rank` replaces a missing LOCAL_RANK. NEOX_RUN_SHA256 is the digest that the run file must have.
"""

import faulthandler
import gc
import os
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from neox_core.errors import UsageError, report
from neox_core.files import allow_many_files
from neox_core.heartbeat import STACK_SIGNAL
from neox_core.plan.runfile import DIGEST, STOPPED, UNFINISHED, RunPlan, noting, read_runfile
from neox_core.run.exit import exit_code_of, explain, for_the_user, leave, leave_with_parent, write_failure
from neox_core.run.startup import Startup

if TYPE_CHECKING:
    from neox_core.contracts.engine import EngineMaker

REQUIRED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def main() -> NoReturn:
    """Train as one rank of a run: the command line names the run file, the environment the rank."""
    entered = time.time()
    gc.disable()  # imports make no garbage, and looking for it takes longer the more is imported
    run_file, rank = _read_command()
    if rank != 0:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # into its log; the terminal belongs to rank 0
    faulthandler.enable()
    faulthandler.register(STACK_SIGNAL)
    leave_with_parent()
    allow_many_files()
    ready = float(os.environ.get("NEOX_HOST_READY_AT", entered))  # not set when a rank is started by hand
    startup = Startup(float(os.environ.get("NEOX_STARTED_AT", ready)))
    startup.mark("host", at=ready)
    startup.mark("launch", at=entered)
    if rank == 0:
        startup.show()
    debug = os.environ.get("NEOX_DEBUG") == "1"
    try:
        ledger: set[str] = set()
        plan: RunPlan = noting(read_runfile(run_file, os.environ.get(DIGEST)), ledger)
        debug = plan.debug
        _set_local_rank(plan.cluster.local_rank)
        engine: EngineMaker = plan.engine_component.load()[0](plan)  # before torch and the engine are imported
        from neox_core.run.run import run  # imports torch

        gc.freeze()  # what is imported stays
        gc.enable()
        startup.mark("imports")
        done = run(plan, engine, startup, ledger)
        if rank == 0:
            mark = run_file.parent / UNFINISHED
            mark.unlink(missing_ok=True) if done else mark.replace(mark.with_name(STOPPED))
    except KeyboardInterrupt:
        startup.hide()
        leave(130)
    except BaseException as error:  # noqa: BLE001 for any error, the launcher must get a report and this process must end
        startup.hide()
        told = for_the_user(error, rank)
        for tell in (partial(explain, error, debug), partial(write_failure, run_file.parent, rank, told)):
            with suppress(OSError):  # for example on the full disk that the error is about
                tell()
        leave(exit_code_of(told))
    leave(0)


def _read_command() -> tuple[Path, int]:
    missing = [name for name in REQUIRED if name not in os.environ]
    if len(sys.argv) != 2 or missing:
        leave(report(UsageError("usage: python -m neox_core.run.rank RUN_FILE", hint="start ranks with `neox train`")))
    return Path(sys.argv[1]), int(os.environ["RANK"])


def _set_local_rank(planned: int | None) -> None:
    """Set the local rank: LOCAL_RANK of the environment, else the plan's. Raises UsageError without either."""
    if "LOCAL_RANK" not in os.environ:
        if planned is None:
            raise UsageError("LOCAL_RANK is not set", hint="set it, or `local_rank` in the config")
        os.environ["LOCAL_RANK"] = str(planned)


if __name__ == "__main__":
    main()

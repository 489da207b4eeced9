"""Guarded runs, one after the other: `python guarded.py OUT '[{"file": ..., "ranks": 1, "kill": ["step", 12]}]'`.

Each rank is a fork of this process. A run writes the samples of each step that it trains on, and what callbacks get, to
`seen.jsonl` beside its run file. kill: the name of a method of Events, and before which of its calls the ranks die.
codes: how each rank ends, where it is not well.
told: interventions that the run is told when it has loaded its checkpoint, as if it had made them before.
"""

import hashlib
import json
import os
import signal
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import neox_deepspeed.engine
import neox_deepspeed.pipeline
import neox_plain.engine
import torch
from layouts import warm_up
from neox_author.testing.ports import free_port

from neox_core.checkpoint.checkpointer import Checkpointer, Resumed
from neox_core.plan.runfile import noting, read_runfile
from neox_core.plan.stored.state import Intervention
from neox_core.run import run as runs
from neox_core.run.events import Events
from neox_core.run.startup import Startup


def rank_main(rank: int, case: dict[str, Any], port: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(case["ranks"])}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    file = Path(case["file"])
    plan = read_runfile(file, hashlib.sha256(file.read_bytes()).hexdigest())
    if case.get("kill"):
        die_before(*case["kill"])
    if case.get("told"):
        tell([Intervention(**each) for each in case["told"]])
    seen = file.with_name("seen.jsonl").open("a")
    for engine in (neox_plain.engine.Engine, neox_deepspeed.engine.Engine):
        watch(engine, seen if rank == 0 else None)
    sys.stdout = sys.stderr = Path(file.with_name(f"said-{rank}.txt")).open("a")  # noqa: SIM115
    ledger = set()
    noted = noting(plan, ledger)
    runs.COLLECTIVE_TIMEOUT = timedelta(seconds=20)
    runs.run(noted, noted.engine_component.load()[0](noted), Startup(0.0), ledger)


def die_before(method: str, call: int) -> None:
    real, count = getattr(Events, method), 0

    def counting(self: Any, *args: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        if count == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(self, *args, **named)

    setattr(Events, method, counting)


def tell(interventions: list[Intervention]) -> None:
    real = Checkpointer.load

    def load(self: Checkpointer) -> Resumed:
        resumed = real(self)
        resumed.state.interventions = tuple(interventions)
        return resumed

    Checkpointer.load = load  # type: ignore[method-assign]  # in this process


def watch(engine: Any, seen: Any) -> None:
    real = engine.train_step

    def train_step(self: Any, batches: Any, lr: float) -> Any:
        taken: list[Any] = []

        def taking() -> Any:
            for batch in batches:
                taken.extend(batch.tolist())
                yield batch

        loss = real(self, taking(), lr)
        if seen is not None:
            seen.write(json.dumps(taken) + "\n")
            seen.flush()
        return loss

    engine.train_step = train_step


def forked(rank: int, case: dict[str, Any], port: int) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        rank_main(rank, case, port)
        code = 0
    except BaseException:  # noqa: BLE001 its exit code says it
        traceback.print_exc(file=sys.stderr if case.get("codes") else sys.__stderr__)
        sys.stderr.flush()
    finally:
        os._exit(code)


def main() -> None:
    warm_up()
    for case in json.loads(sys.argv[2]):
        port = free_port()
        ranks = [forked(rank, case, port) for rank in range(case["ranks"])]
        codes = [os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in ranks]
        wanted = case.get("codes") or [-signal.SIGKILL if case.get("kill") else 0] * case["ranks"]
        if codes != wanted:
            sys.exit(f"{case}: exit codes {codes}")


if __name__ == "__main__":
    main()

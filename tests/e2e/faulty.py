"""Callbacks and an evaluator with faults, for runs of `guarded.py`: each is the target of a component."""

import os
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from neox_gpt.measure_compile import MeasureCompile

from neox_core.contracts.events import Ask


class _Faulty:
    where: ClassVar[str] = "every rank"

    def __init__(self, run: Any, context: Any, settings: Any) -> None:
        self.rank = dist.get_rank()


class RaisesOnOneRank(_Faulty):
    def step(self, step: int) -> None:
        if self.rank == 1 and step == 7:
            raise ZeroDivisionError("no such step")


class AsksOnOneRank(_Faulty):
    def log(self, step: int, values: Any, losses: Any) -> Any:
        return Ask("stop", "enough") if self.rank == 1 and step > 7 else None


class StateOfTensors(_Faulty):
    def state(self) -> Any:
        return {"rank": {self.rank: "one"}}


class LeavesACollective(_Faulty):
    where = "collective"

    def log(self, step: int, values: Any, losses: Any) -> Any:
        if self.rank == 1:
            raise ZeroDivisionError("not here")
        dist.barrier()


class RewindsUnasked(_Faulty):
    def save(self, step: int, losses: Any) -> Any:
        return Ask("rewind", "why not", 1, 2)


class LeavesGradientsOff(_Faulty):
    def step(self, step: int) -> None:
        torch.set_grad_enabled(step < 7)


class MeasuresTooMuch(_Faulty):
    def measured(self, step: int) -> Any:
        return {f"number_{each}": 1.0 for each in range(100_000)}


class Nowhere(_Faulty):
    where = "somewhere"


class EvaluatesOnOneRank:
    """An evaluator whose other rank waits in a collective call."""

    def __init__(self, run: Any, settings: Any) -> None:
        self.run = run

    def evaluate(self, step: int) -> Any:
        if dist.get_rank() == 1:
            raise ZeroDivisionError("no such number")
        dist.barrier()
        return {}


class EvaluatesToText:
    def __init__(self, run: Any, settings: Any) -> None: ...

    def evaluate(self, step: int) -> Any:
        return {"score": "good"}


class EvaluatesWithoutDropout:
    """And leaves it so."""

    def __init__(self, run: Any, settings: Any) -> None:
        self.run = run

    def evaluate(self, step: int) -> Any:
        self.run.engine.model.eval()
        return {"score": 1.0}


class Watches(_Faulty):
    """On rank 0 alone: saves at step 8, stops at step 11, and keeps what it was told."""

    where = "rank 0"

    def __init__(self, run: Any, context: Any, settings: Any) -> None:
        super().__init__(run, context, settings)
        assert self.rank == 0
        self.file = run.run_dir / f"told-{os.getpid()}.txt"
        self.told = 0

    def _tell(self, event: str, step: int) -> None:
        self.told += 1
        with self.file.open("a") as file:
            file.write(f"{event} {step}\n")

    def start(self, step: int) -> None:
        self._tell("start", step)

    def log(self, step: int, values: Any, losses: Any) -> Any:
        self._tell(f"log of {','.join(str(each) for each, _ in losses)} at", step)
        return Ask("save", "eight") if step == 8 else Ask("stop", "eleven") if step >= 11 else None

    def evaluated(self, step: int, values: Any) -> None:
        self._tell(f"evaluated {' '.join(sorted(values))}", step)

    def save(self, step: int, losses: Any) -> None:
        self._tell(f"save after {','.join(str(each) for each, _ in losses)} at", step)

    def saved(self, step: int, folder: Any) -> None:
        self._tell(f"saved {folder.name}", step)

    def state(self) -> Any:
        return {"told": self.told}

    def restore(self, state: Any) -> None:
        self.told = state["told"]
        self._tell(f"restored {self.told}", 0)

    def end(self, step: int) -> None:
        self._tell("end", step)


class ChoosesByTheSlowest(MeasureCompile):
    """By the times of the second rank alone a compiled step is faster, and by those of the first it is not."""

    def __init__(self, run: Any, context: Any, settings: Any, engine: Any) -> None:
        super().__init__(run, context, settings, engine, backend="eager")

    def log(self, step: int, values: Any, losses: Any) -> None:
        slow = dist.get_rank() == 1 and not self._compiles
        super().log(step, {"step_s": 2.0 if slow else 1.0}, losses)

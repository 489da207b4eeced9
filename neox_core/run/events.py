"""Callbacks and evaluators of a run: around its report, so that the loop knows nothing of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from attrs import define, field

from neox_core.checkpoint.rng import undisturbed
from neox_core.contracts.events import Ask, Callback
from neox_core.contracts.host import MOST_METRICS, TOO_MANY
from neox_core.errors import ConfigError, NeoxError, PluginError, RankError
from neox_core.plan.stored.state import Intervention
from neox_core.run.report import Kept
from neox_core.untrusted import short

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from neox_core.checkpoint.checkpointer import Checkpointer
    from neox_core.contracts.engine import Engine
    from neox_core.contracts.objective import Split
    from neox_core.parallel.context import BuildContext
    from neox_core.plan.component import ComponentRef
    from neox_core.plan.runfile import RunPlan
    from neox_core.plan.stored.state import TrainState
    from neox_core.run.evaluation import Evaluation
    from neox_core.run.loop import Reporter, Saver, Stop
    from neox_core.run.report import Report
    from neox_core.run.samples import TrainingSamples
    from neox_core.run.stop import StopSignal

DOES = ("", "stop", "save", "rewind")
WHERE = ("rank 0", "every rank", "collective")
NAME = re.compile(r"(?!(loss|lr)$)[\w.-]{1,300}")


class _Rewind(Exception):  # noqa: N818 - no error: it leaves the loop, which begins again at the last checkpoint
    """All ranks rewind. args: the callback, and what it asks."""


@define(eq=False)
class _Acting:
    """A callback of the run; `made` is None on the ranks where it does not act."""

    reference: ComponentRef
    where: str
    made: Any
    asked: Ask | None = None
    fault: NeoxError | None = None

    @property
    def name(self) -> str:
        return f"{self.reference.plugin}:{self.reference.name}"

    def handles(self, event: str) -> bool:
        return getattr(type(self.made), event, None) not in (None, getattr(Callback, event))

    def call(self, event: str, *args: Any) -> Any:
        """What it returns. A fault is kept until all ranks agree, unless others wait for it in a collective call."""
        if self.fault is not None or not self.handles(event):
            return None
        try:
            with self.reference.blamed(), undisturbed():
                answer = getattr(self.made, event)(*args)
            if event == "state" and json.loads(json.dumps(answer, allow_nan=False)) != answer:
                raise ValueError("JSON changes it")
            return answer
        except (NeoxError, TypeError, ValueError) as error:
            unlike = self.reference.fault(f"state() is not what JSON holds: {error}")
            own = error if isinstance(error, NeoxError) else unlike
            self.fault = type(own)(f"{own.message} (at the event `{event}`)", hint=own.hint)
            if self.where == "collective":
                raise self.fault from error
            return None

    def ask(self, event: str, *args: Any) -> None:
        self.asked = self.call(event, *args)
        if self.asked is not None and not isinstance(self.asked, Ask):
            self.fault = self.reference.fault(f"{event}() returns an Ask or None, not a {type(self.asked).__name__}")
        elif self.asked is not None and not self.may(event, self.asked.do):
            self.fault = self.reference.fault(f"{event}() asks to {self.asked.do}, which it may not")
        self.asked = None if self.fault else self.asked

    def may(self, event: str, do: str) -> bool:
        if event == "step":
            return do == "stop"
        return do != "rewind" or (event != "start" and getattr(self.made, "rewinds", False))

    def row(self) -> tuple[int, int, int, int]:
        ask = self.asked
        return (int(self.fault is not None), *((DOES.index(ask.do), ask.first, ask.last) if ask else (0, 0, 0)))


@define(eq=False)
class Events:
    """The report, saver and stop signal that the loop gets in a run with callbacks or evaluators."""

    plan: RunPlan
    context: BuildContext
    report: Report
    state: TrainState
    door: Evaluation
    _saver: Saver = field(init=False)
    _stop: StopSignal = field(init=False)
    _checkpointer: Checkpointer = field(init=False)
    _callbacks: list[_Acting] = field(factory=list)
    _evaluators: list[tuple[ComponentRef, Any]] = field(factory=list)
    _kept: Kept = field(factory=Kept)
    _stopping: bool = False

    def build(self, samples: TrainingSamples) -> None:
        """Make all of them."""
        for reference in self.plan.callbacks:
            target, settings = reference.load()
            where = getattr(target, "where", None)
            if where not in WHERE:
                raise reference.fault(f"`where` is one of {', '.join(WHERE)}, not {where!r}")
            can = samples.skippable and self.plan.checkpoint.save
            if getattr(target, "rewinds", False) and not can:
                why = "its samples cannot be skipped" if self.plan.checkpoint.save else "`save` is not set"
                message = f"{reference.owner} rewinds the run, and {why}"
                raise ConfigError(message, hint="set save, and read prepared data without a curriculum of samples")
            with reference.blamed(), undisturbed():
                acts = where != "rank 0" or dist.get_rank() == 0
                more = {"engine": self.door.engine} if "engine" in signature(target).parameters else {}
                made = target(self.report.run, self.context, settings, **more) if acts else None
            if acts and made is None:
                raise reference.fault("makes None, not a callback")
            self._callbacks.append(_Acting(reference, where, made))
        for reference in self.plan.evaluators:
            with reference.blamed(), undisturbed():
                self._evaluators.append((reference, reference.make(self.door)))
        self.report.kept = self._kept

    def train(
        self,
        loop: Callable[[Reporter, Saver, Stop], bool],
        checkpointer: Checkpointer,
        samples: TrainingSamples,
        saver: Saver,
        stop: StopSignal,
    ) -> bool:
        """Run the loop, again after each rewind. Returns what it returns. saver, stop: those around which this is."""
        self._saver, self._stop, self._checkpointer, self.door.alive = saver, stop, checkpointer, stop.alive
        for name in sorted(self.state.callbacks.keys() - {each.name for each in self._callbacks}):
            self.say(f"{name} left its state in the checkpoint, and is not a callback of this run")
        self._restore()
        self._ask("start", self.state.step)
        while True:
            try:
                return loop(self, self, self)
            except _Rewind as rewind:
                self._rewind(samples, *rewind.args)

    def step(self, step: int, loss: Tensor, lr: float, engine: Engine) -> None:
        self.report.step(step, loss, lr, engine)
        for each in self._callbacks:
            each.ask("step", step)
            if each.asked is not None:
                self.say(f"{each.name} asks to stop: {short(each.asked.why)}")
                self._stop.end()
                each.asked = None
            if (values := each.call("measured", step)) is not None:
                self.report.log(step, _numbers(each.reference, "measured", values))
        if "loss" in (values := self._kept.take_values()):
            self._ask("log", step, values, self._kept.take_losses())

    def validation(self, step: int, losses: Sequence[Tensor], split: Split = "valid") -> float:
        loss = self.report.validation(step, losses, split)
        for reference, evaluator in self._evaluators if split == "valid" else ():
            with reference.blamed("evaluate(), which returns a float for each name"), undisturbed():
                values = evaluator.evaluate(step)
            values = _numbers(reference, "evaluate", values)
            if not self.door.engine.model.training:
                raise reference.fault("evaluate() leaves the model in evaluation mode: no step would drop out")
            if twice := ", ".join(sorted(values.keys() & self._kept.values.keys())):
                raise reference.fault(f"gives {twice}, which the run or another evaluator has")
            self.report.log(step, values)
        measured = self._kept.take_values()
        if split == "valid":
            self._ask("evaluated", step, measured)
        return loss

    def check(self) -> None:
        self.report.check()
        self._ask("save", self.state.step, self._kept.take_losses(), saving=True)

    def save(self, state: TrainState) -> Path | str | None:
        saved = self._saver.save(state)
        self._tell_saved()
        return saved

    def say(self, message: str) -> None:
        self.report.say(message)

    def poll(self) -> bool:
        return self._stop.poll() or self._stopping  # collective: asked for at every step

    def _tell_saved(self) -> None:
        for saved in self._checkpointer.completed():
            for each in self._callbacks:
                each.call("saved", *saved)

    def end(self) -> None:
        self._tell_saved()
        self._ask("end", self.state.step)

    def _restore(self) -> None:
        for each in self._callbacks:
            if each.name in self.state.callbacks:
                each.call("restore", self.state.callbacks[each.name])

    def _ask(self, event: str, *args: Any, saving: bool = False) -> None:
        """Call all callbacks; raise on every rank what any of them has to raise, and do what they ask."""
        for each in self._callbacks:
            each.ask(event, *args)
        if saving:
            states = {each.name: each.call("state") for each in self._callbacks}
            self.state.callbacks = {name: state for name, state in states.items() if state is not None}
        asked = dict(self._agreed())
        for do, (each, ask) in asked.items():
            if do != "save":
                self.say(f"{each.name} asks to {do}: {short(ask.why)}")
        if "rewind" in asked:
            raise _Rewind(*asked["rewind"])
        self._stopping |= "stop" in asked
        if "save" in asked and not saving:
            self.check()
            if (saved := self.save(self.state)) is not None:
                by, ask = asked["save"]
                self.say(f"saved {saved}, as {by.name} asks: {short(ask.why)}")

    def _agreed(self) -> list[tuple[str, tuple[_Acting, Ask]]]:
        """What the callbacks ask, the same on all ranks. Collective."""
        mine = torch.tensor([each.row() for each in self._callbacks], device=self.context.device)
        rows = [mine]
        if self._callbacks and self.context.groups.world is not None:
            rows = [torch.empty_like(mine) for _ in range(dist.get_world_size(self.context.groups.world))]
            dist.all_gather(rows, mine, group=self.context.groups.world)
        asked = []
        for each, ranks in zip(self._callbacks, torch.stack(rows, 1).tolist(), strict=True):  # [callbacks, ranks, 4]
            if failed := [rank for rank, row in enumerate(ranks) if row[0]]:
                other = f"{each.reference.owner} failed on rank {failed[0]}"
                raise each.fault or PluginError(other, hint="see the log of that rank for the cause")
            if each.where != "rank 0" and ranks.count(ranks[0]) < len(ranks):
                said = [DOES[row[1]] or "nothing" for row in ranks]
                raise each.reference.fault(f"asks for {', '.join(said)} on the ranks, in their order: not the same")
            do, first, last = ranks[0][1:]
            if do:
                does = DOES[do]
                asked.append((does, (each, each.asked or Ask(does, "see rank 0", first, last))))  # type: ignore[arg-type] # of DOES
            each.asked = None
        return asked

    def _rewind(self, samples: TrainingSamples, by: _Acting, ask: Ask) -> None:
        """Go back to the last checkpoint, and on without the samples of the steps that were asked for."""
        state, at, before = self.state, self.state.step, self.plan.batch.samples_before
        made = state.interventions  # more than the checkpoint has, where the run has gone back to it before
        with self._stop.busy():
            self._checkpointer.rewind(state)
        self._tell_saved()
        first = max(ask.first, state.step + 1)
        if first > ask.last:
            message = f"{by.name} skips steps {ask.first} to {ask.last}, which the checkpoint of step {state.step} has"
            raise RankError(message, hint="resume from an earlier checkpoint")
        place = samples.where(before(first - 1)), samples.where(before(ask.last) - 1) + 1
        state.interventions = (*made, Intervention(at, state.step, *place, by.name))
        samples.resume(state, None)
        self.report.rewound(state.step)
        names = "rewound_from", "skipped_first_sample", "skipped_last_sample"
        self.report.log(state.step, dict(zip(names, map(float, (at, place[0], place[1] - 1)), strict=True)))
        self.say(f"back at step {state.step}, without samples {place[0]} to {place[1] - 1} of {by.name}")
        self._kept.take_values(), self._kept.take_losses()
        self._restore()
        by.call("rewound", state.step, ask)


def _numbers(reference: ComponentRef, method: str, values: Any) -> dict[str, float]:
    for name, each in values.items() if isinstance(values, Mapping) else [("", values)]:
        if not isinstance(each, float) or not isinstance(name, str) or not NAME.fullmatch(name):
            said = f"{method}() gives a float for each name, a word that is not the run's"
            raise reference.fault(f"{said}, not {short({name: each})}")
    if len(values) > MOST_METRICS:
        raise reference.fault(f"{method}() gives {len(values):,} numbers: {TOO_MANY}")
    return dict(values)

"""The check of a callback: a run of events, without a model, with spikes in its losses."""

from __future__ import annotations

import json
import math
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from neox_author.testing.clauses import clauses, hold, is_word, not_applicable
from neox_author.testing.plugins import build
from neox_author.testing.two_ranks import on_two_ranks
from neox_core.contracts.events import Ask, Callback
from neox_core.contracts.host import RunInfo

if TYPE_CHECKING:
    from neox_core.hooks.catalog import Catalog

EVENTS = ("start", "step", "measured", "log", "evaluated", "save", "saved", "end")
METHODS = (*EVENTS, "state", "restore", "rewound")
LAST, EACH_LOG, EACH_SAVE = 240, 4, 6
RATE = 0.1
SPIKES = {90: 9.0, 151: 30.0, 152: 30.0, 199: math.nan, 223: math.inf}
"""Losses that are not on the curve, by step."""
COLLECTIVES = ("all_reduce", "all_gather", "all_gather_object", "broadcast", "barrier", "reduce_scatter", "all_to_all")
WAITS = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__")
ALIKE = "what it asks and its state follow from its settings, its calls and its state"


@clauses
def check_callback(catalog: Catalog, name: str, **settings: Any) -> None:
    """The clauses of contracts.Callback, tried by a run of events. Raises AssertionError with the broken one."""
    entry = catalog.find("callback", name)
    target, chosen = entry.load(), build(entry, **settings)
    where, rewinds = getattr(target, "where", None), getattr(target, "rewinds", False)
    hold(where in ("rank 0", "every rank", "collective"), f"`where` is rank 0, every rank or collective, not {where!r}")
    hold(isinstance(rewinds, bool), f"`rewinds` is True or False, not {rewinds!r}")

    more = {"engine": _engine()} if "engine" in signature(target).parameters else {}

    def make(first_step: int = 0, rank: int = 0, group: Any = None) -> _Played:
        folder.mkdir(exist_ok=True)
        run = RunInfo(folder, first_step, LAST, 1000, 2, 64, "cpu", 4)
        return _Played(target(run, _context(rank, group), chosen, **more), rank, more.get("engine"))

    with tempfile.TemporaryDirectory() as temporary, _watched(where == "collective"):
        folder = Path(temporary, "run")
        first = make()
        handled = [
            each for each in METHODS if getattr(type(first.made), each, None) not in (None, getattr(Callback, each))
        ]
        hold({*handled} & {*EVENTS}, f"it has a method for one event or more: {', '.join(EVENTS)}")
        whole = first.play(_events(), rewinds)
        places = [index for index, (_, event, *_) in enumerate(whole) if event == "save"]
        hold(("state" in handled) == ("restore" in handled), "state() and restore() come together")
        if "state" in handled:
            for index in (places[0], places[len(places) // 2], places[-1]):
                later = make(whole[index][0])
                later.restore(whole[index][3])
                rest = later.play(_events()[index + 1 :], rewinds)
                hold(
                    _asked(rest) == _asked(whole[index + 1 :]),
                    f"after restore() it asks the same; from step {whole[index][0]} on",
                )
                hold(
                    _states(rest) == _states(whole[index + 1 :]),
                    f"after restore() it has the same state; from step {whole[index][0]} on",
                )
        else:
            not_applicable("after restore() it asks the same", "it has no state()")
        if where == "rank 0":
            again = make().play(_events(), rewinds)
            hold(_asked(again) == _asked(whole) and _states(again) == _states(whole), ALIKE)
            not_applicable("all ranks ask the same", "it is made on rank 0 alone")
        elif where == "every rank":
            other = make(rank=1).play(_events(rank=1), rewinds)
            same = "all ranks ask the same and have the same state, by what is the same on all of them"
            hold(_asked(other) == _asked(whole) and _states(other) == _states(whole), same)
        else:
            same = "every rank makes the same collective calls"
            ranks = on_two_ranks(lambda rank, group: _plain(make(0, rank, group).play(_events(rank), rewinds)), same)
            hold(
                ranks[0] == ranks[1],
                "all ranks ask the same and have the same state, by what is the same on all of them",
            )


class _Played:
    """A callback and the events that it is given."""

    def __init__(self, made: Any, rank: int, engine: Any) -> None:
        self.made, self.seed, self.engine = made, rank, engine
        self.weights = [] if engine is None else [each.detach().clone() for each in engine.model.parameters()]

    def call(self, event: str, *args: Any) -> Any:
        method = getattr(self.made, event, None)
        random.seed(self.seed)  # another process has another state of its generators
        self.seed += 7919
        if method is None:
            return None
        with _no_waiting() if event == "step" else ExitStack():
            answer = method(*args)
        self.left()
        return answer

    def left(self) -> None:
        """What a callback may not change, as it is between two steps."""
        import torch

        hold(torch.is_grad_enabled(), "it leaves gradients on: torch.set_grad_enabled() is as it was")
        hold(torch.get_default_dtype() == torch.float32, "it leaves torch.set_default_dtype() as it was")
        if self.engine is None:
            return
        model, optimizer = self.engine.model, self.engine.optimizer
        hold(model.training, "it leaves the model in training")
        same = all(torch.equal(each, before) for each, before in zip(model.parameters(), self.weights, strict=True))
        hold(same, "it leaves the weights of the model as they are")
        rates = [group["lr"] for group in optimizer.param_groups]
        hold(rates == [RATE] * len(rates), "it leaves the learning rate to the schedule")

    def play(self, events: Sequence[tuple[Any, ...]], rewinds: bool) -> list[tuple[int, str, Any, Any]]:
        """(step, event, what it asks, its state at a save) of each event."""
        told = []
        for event, step, *args in events:
            given = json.dumps(args, default=str)
            asked = self.call(event, step, *args)
            hold(json.dumps(args, default=str) == given, "it leaves values and losses as they are: others get them too")
            _check_ask(event, step, asked, rewinds)
            state = self.state() if event == "save" else None
            told.append((step, event, asked, state))
            if event == "step":
                _check_numbers(self.call("measured", step))
            if asked is not None and asked.do == "rewind":
                self.rewind(step, asked, state)
        return told

    def state(self) -> Any:
        state = self.call("state")
        clause = "state() is what JSON holds without a change"
        try:
            back = json.loads(json.dumps(state, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise AssertionError(f"{clause}; {error}") from error
        hold(back == state, f"{clause}; {state!r} becomes {back!r}")
        return back

    def restore(self, state: Any) -> None:
        if state is not None:
            self.call("restore", state)

    def rewind(self, step: int, asked: Ask, state: Any) -> None:
        """What the run does then, from a checkpoint that it wrote here: what comes after is not skipped."""
        self.restore(self.state() if state is None else state)
        self.call("rewound", step - 1, asked)


def _check_ask(event: str, step: int, asked: Any, rewinds: bool) -> None:
    hold(asked is None or isinstance(asked, Ask), f"an event returns an Ask or None; {event}() returns {asked!r}")
    if asked is None:
        return
    hold(event not in ("saved", "end"), f"saved() and end() ask nothing; {event}() asks to {asked.do}")
    hold(event != "step" or asked.do == "stop", "step() asks nothing but to stop")
    hold(event != "start" or asked.do == "save", "start() asks nothing but to save")
    hold(bool(asked.why) and "\n" not in asked.why, f"`why` is one line, not {asked.why!r}")
    if asked.do == "rewind":
        hold(rewinds, "a callback that asks to rewind has `rewinds = True`")
        hold(asked.first <= asked.last and asked.last > 0, f"a rewind skips steps: {asked.first} to {asked.last}")
        hold(asked.first <= step, f"a rewind skips steps that the run has made: {asked.first} is after {step}")


def _check_numbers(values: Any) -> None:
    named = isinstance(values, Mapping) and all(map(is_word, values))
    said = f"measured() returns a float for each name, a word, or None; it returns {values!r}"
    hold(values is None or (named and all(isinstance(each, float) for each in values.values())), said)


def _events(rank: int = 0) -> list[tuple[Any, ...]]:
    """(event, step, what it gets) of a run. rank: times and memory are of it."""
    events: list[tuple[Any, ...]] = [("start", 0)]
    losses: list[tuple[int, float]] = []
    for step in range(1, LAST + 1):
        events.append(("step", step))
        losses.append((step, SPIKES.get(step, 2 + 3 / step + 0.01 * math.sin(step))))
        if step % EACH_LOG == 0:
            loss = sum(each for _, each in losses) / len(losses) if losses else math.nan
            own = {
                "tokens_per_s": 1e6 / (1 + rank),
                "step_s": 0.1 + rank,
                "data_wait_s": float(rank),
                "memory_gib": 1.0 + rank,
            }
            events.append(("log", step, {"loss": loss, "lr": 1e-3, "skipped_steps": 0.0, **own}, tuple(losses)))
            losses = []
        if step % 20 == 0:
            loss = 2 + 3 / min(step, 100) + max(0, step - 100) / 500  # it falls, and then rises
            events.append(("evaluated", step, {"valid_loss": loss, "valid_perplexity": math.exp(loss)}))
        if step % EACH_SAVE == 0:
            events += [("save", step, tuple(losses)), ("saved", step, Path(f"step-{step:08d}"))]
            losses = []
    return [*events, ("end", LAST)]


def _context(rank: int, group: Any) -> Any:
    import torch

    from neox_core.parallel.context import BuildContext
    from neox_core.parallel.groups import Groups

    return BuildContext(torch.device("cpu"), torch.float32, Groups(None, group, rank, 2 if rank or group else 1), 1)


def _engine() -> Any:
    """What a callback may keep something of before a step: no event of these runs trains."""
    import torch

    model = torch.nn.Linear(4, 4)
    shapes = {name: tuple(each.shape) for name, each in model.named_parameters()}
    return SimpleNamespace(
        device=torch.device("cpu"),
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=RATE),
        shards=(),
        weights=(),
        partitioned=False,
        skipped_steps=lambda: 0,
        made_update=lambda: True,
        grad_norm=lambda: 1.0,
        loss_scale=lambda: None,
        timings=dict,
        shapes=lambda: shapes,
        stores=lambda name: True,
        whole_weights=lambda: ((name, each.detach()) for name, each in model.named_parameters()),
        at_hand=nullcontext,
        filled_groups=nullcontext,
    )


@contextmanager
def _watched(collective: bool) -> Iterator[None]:
    """Collective calls fail, unless the callback says that it makes them."""
    import torch.distributed as dist

    def refuse(name: str) -> Callable[..., Any]:
        def refused(*args: Any, **named: Any) -> Any:
            raise AssertionError(f"it makes no collective call, since it is not collective; it calls {name}")

        return refused

    with ExitStack() as stack:
        for name in COLLECTIVES if not collective else ():
            stack.enter_context(mock.patch.object(dist, name, refuse(name)))
        yield


@contextmanager
def _no_waiting() -> Iterator[None]:
    """What waits for the device fails."""
    import torch

    def refuse(*args: Any, **named: Any) -> Any:
        raise AssertionError("step() does not wait for the device")

    with ExitStack() as stack:
        for name in WAITS:
            stack.enter_context(mock.patch.object(torch.Tensor, name, refuse))
        stack.enter_context(mock.patch.object(torch.cuda, "synchronize", refuse))
        yield


def _plain(told: Sequence[tuple[int, str, Any, Any]]) -> list[Any]:
    return [[step, event, str(asked), state] for step, event, asked, state in told]


def _asked(told: Sequence[tuple[int, str, Any, Any]]) -> list[Any]:
    return [(step, event, asked) for step, event, asked, _ in told if asked is not None]


def _states(told: Sequence[tuple[int, str, Any, Any]]) -> list[Any]:
    return [state for *_, state in told]

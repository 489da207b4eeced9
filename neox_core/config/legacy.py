"""Older spellings of keys, turned into the ones in use before anything else looks at them."""

from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen

from neox_core.config.convert import same, shown
from neox_core.config.load import Loaded, Place
from neox_core.config.problem import Problem


@frozen
class Switch:
    """A boolean key that chose what a named value chooses now; `false` says nothing."""

    key: str
    to: str
    value: str


@frozen
class Moved:
    """A key that has another name or lives in a block now. `item`: place in a list, whose other items are `others`."""

    key: str
    to: str
    item: int | None = None
    others: tuple[float, ...] = ()


LEGACY: tuple[Switch | Moved, ...] = (
    Switch("geglu", "activation", "geglu"),
    Switch("openai_gelu", "activation", "openai-gelu"),
    Switch("rms_norm", "norm", "rmsnorm"),
    Switch("sinusoidal_pos_emb", "pos_emb", "sinusoidal"),
    Moved("batch_size", "train_micro_batch_size_per_gpu"),
    Moved("lr", "optimizer.params.lr"),
    Moved("adam_beta1", "optimizer.params.betas", 0, (0.9, 0.999)),
    Moved("adam_beta2", "optimizer.params.betas", 1, (0.9, 0.999)),
    Moved("adam_eps", "optimizer.params.eps"),
    Moved("loss_scale", "fp16.loss_scale"),
    Moved("loss_scale_window", "fp16.loss_scale_window"),
    Moved("min_scale", "fp16.min_loss_scale"),
    Moved("hysteresis", "fp16.hysteresis"),
)
LEGACY_KEYS: Mapping[str, Switch | Moved] = {rule.key: rule for rule in LEGACY}


def modernise(loaded: Loaded) -> Loaded:
    """The same config in today's spelling; a key whose successor says something else is an error that names both."""
    work = _Work(loaded)
    written_betas = "betas" in _block(loaded.values, ("optimizer", "params"))
    for rule in LEGACY:
        if rule.key not in loaded.values:
            continue
        raw = work.values.pop(rule.key)
        if isinstance(rule, Switch):
            work.switch(rule, raw)
        elif raw is not None:
            work.move(rule, raw, written_betas)
    return evolve(loaded, values=work.values, places=work.places, problems=(*loaded.problems, *work.problems))


class _Work:
    def __init__(self, loaded: Loaded) -> None:
        self.values = _copy(loaded.values)
        self.places = dict(loaded.places)
        self.problems: list[Problem] = []

    def say(self, rule: Switch | Moved, message: str, hint: str = "", severity: str = "error") -> None:
        place = self.places[rule.key]
        self.problems.append(Problem(message, place.spelled, hint, place.where, severity))

    def switch(self, rule: Switch, raw: Any) -> None:
        if not isinstance(raw, bool):
            self.say(rule, f"must be true or false, not {shown(raw)}")
        elif raw:
            self.put(rule, rule.to, rule.value, f"{rule.to.replace('_', '-')}: {rule.value}")

    def move(self, rule: Moved, raw: Any, written: bool) -> None:
        if rule.item is None:
            self.put(rule, rule.to, raw, rule.to)
            return
        name = f"{rule.to}[{rule.item}]"
        *parts, last = rule.to.split(".")
        block = _block(self.values, parts)
        now = block.get(last)
        if written:
            if not isinstance(now, list) or len(now) <= rule.item or not same(now[rule.item], raw):
                self.differs(rule, rule.to, name)
            return
        items = list(now) if isinstance(now, list) else list(rule.others)
        items[rule.item] = raw
        self.set(rule, parts, last, items, name)

    def put(self, rule: Switch | Moved, to: str, value: Any, name: str) -> None:
        *parts, last = to.split(".")
        now = _block(self.values, parts).get(last)
        if now is not None and to in self.places and not same(now, value):
            self.differs(rule, to, name)
        elif now is None:
            self.set(rule, parts, last, value, name)

    def set(self, rule: Switch | Moved, parts: list[str], last: str, value: Any, name: str) -> None:
        block = self.values
        for part in parts:
            inner = block.setdefault(part, {})
            if not isinstance(inner, dict):
                return  # the block itself is wrong, which is reported where it is read
            block = inner
        block[last] = value
        place = self.places[rule.key]
        self.places[".".join((*parts, last))] = Place(place.where, place.spelled)
        self.say(rule, f"is the old spelling of {name}", severity="note")

    def differs(self, rule: Switch | Moved, to: str, name: str) -> None:
        there = self.places[to]
        self.say(
            rule, f"differs from {there.spelled} at {there.where}", f"{name} is the spelling in use: keep that one"
        )


def _block(values: Mapping[str, Any], parts: Any) -> dict[str, Any]:
    block: Any = values
    for part in parts:
        block = block.get(part) if isinstance(block, dict) else None
    return block if isinstance(block, dict) else {}


def _copy(value: Any) -> Any:
    return {key: _copy(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value

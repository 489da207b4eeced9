"""Translates a config in older spellings to today's, by rules."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from neox_core.config.problem import Problem
from neox_core.config.read.load import Loaded, Place
from neox_core.config.report import spell
from neox_core.config.schema.convert import same, shown
from neox_core.hooks.registry import Registry
from neox_gpt_neox.older import Assumed, Gone, Means, Moved, OlderSpelling

SAYS_NOTHING = "has no effect any more"
"""How the note starts on a key whose value asks for the only behaviour."""


@frozen
class Spellings:
    """A dialect that is a table of rules, applied in their order, and explains nothing else."""

    rules: Sequence[OlderSpelling]

    @property
    def older(self) -> tuple[str, ...]:
        """The top-level keys that are not in use any more, also not as blocks."""
        rules = (each for each in self.rules if "." not in each.key and not isinstance(each, Assumed))
        return tuple(each.key for each in rules if not (isinstance(each, Means) and each.block))

    def translate(self, loaded: Loaded) -> Loaded:
        """The config in today's spelling. A key whose successor has another value is an error that names both."""
        return _translated(loaded, self.rules)

    def explain(self, path: str, value: Any) -> Iterable[Problem] | None:
        return None

    def explain_name(self, kind: str, name: str) -> tuple[str, str] | None:
        return None

    def names_in(self, path: str) -> Sequence[str]:
        return ()


def rules_of(registry: Registry) -> Iterator[tuple[str, OlderSpelling]]:
    """(plugin, rule) of every installed dialect that is a table."""
    for entry in registry.entries("dialect"):
        dialect = entry.load()
        yield from ((entry.plugin.id, rule) for rule in dialect.rules) if isinstance(dialect, Spellings) else ()


def _translated(loaded: Loaded, rules: Iterable[OlderSpelling]) -> Loaded:
    work = Rewriting(loaded)
    work.apply(rules, loaded)
    return work.done(loaded)


class Rewriting:
    """Values and positions so far, and the notes on the translated keys."""

    def __init__(self, loaded: Loaded) -> None:
        self.values = _copy(loaded.values)
        self.places = dict(loaded.places)
        self.written = frozenset(loaded.places)
        self.taken: set[str] = set()
        self.problems: list[Problem] = []

    def apply(self, rules: Iterable[OlderSpelling], loaded: Loaded) -> None:
        """Rewrite by each rule, in their order."""
        for rule in rules:
            if isinstance(rule, Assumed):
                self.assume(rule, loaded)
                continue
            block, last = self.block_of(rule.key)
            if last not in block or isinstance(block[last], dict):
                continue
            if isinstance(rule, Means) and rule.block and not isinstance(block[last], bool):
                continue
            raw = block.pop(last)
            if isinstance(rule, Means):
                self.means(rule, raw)
            elif isinstance(rule, Gone):
                self.gone(rule, raw)
            elif isinstance(rule, Moved) and raw is not None:
                self.move(rule, raw)
            if not block and "." in rule.key:
                self.drop_empty(rule.key.rpartition(".")[0])

    def done(self, loaded: Loaded) -> Loaded:
        """The config as it is now."""
        places = {path: place for path, place in self.places.items() if path not in self.taken}
        return evolve(loaded, values=self.values, places=places, problems=(*loaded.problems, *self.problems))

    def value(self, path: str) -> Any:
        """The value of a dotted key, None where there is none."""
        block, last = self.block_of(path)
        return block.get(last)

    def drop(self, path: str, message: str, hint: str = "", severity: str = "note") -> None:
        """Take a key out of the config, with what is in it, and say why."""
        self.note(path, message, hint, severity)
        block, last = self.block_of(path)
        del block[last]
        self.taken |= {each for each in self.places if f"{each}.".startswith(f"{path}.")}

    def replace(self, path: str, to: str, value: Any, message: str, severity: str = "note") -> None:
        """Write another key, or another value of the same, at the position of a key, and say so."""
        self.note(path, message, "", severity)
        place = self.places[path]
        if path != to and self.value(path) is not None:
            block, last = self.block_of(path)
            del block[last]
            self.taken |= {each for each in self.places if f"{each}.".startswith(f"{path}.")}
        if self.write(to, value, place):
            self.taken.discard(to)

    def note(self, path: str, message: str, hint: str = "", severity: str = "note") -> None:
        """Say something of a key at its position."""
        place = self.places[path]
        self.problems.append(Problem(message, place.spelled, hint, place.where, severity))

    def block_of(self, path: str) -> tuple[dict[str, Any], str]:
        """The block around a key, empty when it is missing, and the key's last part."""
        *parts, last = path.split(".")
        block: Any = self.values
        for part in parts:
            block = block.get(part) if isinstance(block, dict) else None
        return (block if isinstance(block, dict) else {}), last

    def drop_empty(self, path: str) -> None:
        """Remove a block that is empty, because none of its keys has an effect any more."""
        block, last = self.block_of(path)
        if block.get(last) == {}:
            del block[last]

    def say(self, rule: OlderSpelling, message: str, hint: str = "", severity: str = "error") -> None:
        place = self.places[rule.key]
        self.problems.append(Problem(message, place.spelled, hint, place.where, severity))

    def means(self, rule: Means, raw: Any) -> None:
        """Replace a key whose values stand for values of other keys."""
        self.forget(rule)
        if not any(same(raw, case) for case in rule.cases):
            known = "true or false" if True in rule.cases else "one of " + ", ".join(map(str, rule.cases))
            if raw is not None:
                self.say(rule, f"must be {known}, not {shown(raw)}")
            return
        case = rule.cases[raw]
        if case is not None:
            self.put(rule, *case, also=rule.also)
            return
        for to, value in filter(None, rule.cases.values()):
            block, last = self.block_of(to)
            if to in self.places and last in block and any(same(block[last], each) for each in (value, *rule.also)):
                self.differs(rule, to, to)

    def gone(self, rule: Gone, raw: Any) -> None:
        """Remove a key that has no equivalent, or report a value that would have an effect."""
        self.forget(rule)
        if raw is None:
            return
        harmless = rule.harmless is None or any(same(raw, each) for each in rule.harmless)
        severity = "note" if harmless else "error"
        said = SAYS_NOTHING if harmless else f"cannot be {shown(raw)}"
        self.say(rule, f"{said}: {rule.why}", rule.hint, severity)

    def move(self, rule: Moved, raw: Any) -> None:
        """Write the value of a renamed key, or of an item of its list, under its new name."""
        self.forget(rule)
        if rule.item is None:
            self.put(rule, rule.to, raw)
            return
        name = f"{rule.to}[{rule.item}]"
        block, last = self.block_of(rule.to)
        now = block.get(last)
        if rule.to in self.written and now is not None:
            if not isinstance(now, list) or len(now) <= rule.item or not same(now[rule.item], raw):
                self.differs(rule, rule.to, name)
            else:
                self.agrees(rule, name)
            return
        items = list(now) if isinstance(now, list) else list(rule.others)
        items[rule.item] = raw
        self.set(rule, rule.to, items, name)

    def put(self, rule: OlderSpelling, to: str, value: Any, also: tuple[str, ...] = ()) -> None:
        """Write a value under `to`, unless it has one. also: other values there that mean the same."""
        block, last = self.block_of(to)
        now = block.get(last)
        name = spell(to) if isinstance(rule, Moved) else setting_text(to, value)
        if now is None:
            self.set(rule, to, value, name)
        elif not any(same(now, each) for each in (value, *also)):
            self.differs(rule, to, name)
        else:
            self.agrees(rule, name)

    def set(self, rule: OlderSpelling, to: str, value: Any, name: str) -> None:
        """Write a value under a key of today, and note the older spelling."""
        if self.write(to, value, self.places[rule.key]):
            self.taken.discard(to)
            self.agrees(rule, name)

    def write(self, to: str, value: Any, place: Place) -> bool:
        """Write a value. False where a key around it is not a block, which is reported where that key is read."""
        *parts, last = to.split(".")
        block = self.values
        for part in parts:
            if block.get(part) is None:
                block[part] = {}
            if not isinstance(block[part], dict):
                return False
            block = block[part]
        block[last] = value
        self.places[to] = Place(place.where, place.spelled)
        return True

    def assume(self, assumed: Assumed, loaded: Loaded) -> None:
        """Add the value that GPT-NeoX assumes for a missing key when another key is set."""
        block, last = self.block_of(assumed.key)
        if not loaded.values.get(assumed.beside) or block.get(last) is not None:
            return
        place = loaded.places[assumed.beside]
        if self.write(assumed.key, assumed.value, place):
            message = f"without {spell(assumed.key)}, {assumed.by} takes {assumed.value}, and so does this"
            self.problems.append(Problem(message, place.spelled, "", place.where, "note"))

    def agrees(self, rule: OlderSpelling, name: str) -> None:
        """Note that a key is an older spelling."""
        self.say(rule, f"is the old spelling of {name}", severity="note")

    def forget(self, rule: OlderSpelling) -> None:
        """Remove the key itself, once its successor is written."""
        self.taken.add(rule.key)

    def differs(self, rule: OlderSpelling, to: str, name: str) -> None:
        """Report that the older spelling and today's have different values."""
        there = self.places[to]
        self.say(
            rule, f"differs from {there.spelled} at {there.where}", f"{name} is the spelling in use: keep that one"
        )


def _copy(value: Any) -> Any:
    return {key: _copy(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value


def setting_text(key: str, value: Any) -> str:
    """`key: value` as a message writes it."""
    return f"{spell(key)}: {in_text(value)}"


def in_text(value: Any) -> str:
    """A value as a message writes it, text without quotes."""
    return value if isinstance(value, str) else shown(value)

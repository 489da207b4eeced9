"""What the dialect says of a key or a name that nothing installed has."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from neox_core.config.problem import Problem
from neox_core.config.report import spell
from neox_core.config.schema.convert import UNKNOWN_KEY, join, same
from neox_gpt_neox.known import gpt_neox, known
from neox_gpt_neox.older import Moved
from neox_gpt_neox.spellings import SPELLINGS

NOT_YET = "is known, but not available in this version yet"


def explain(path: str, value: Any) -> Iterable[Problem] | None:
    """For a block of a later version, one problem for each key in it. `null` sets nothing."""
    if known().find(path):
        return tuple(_not_yet(path, value))
    if path in gpt_neox()[0]:
        return tuple(_foreign(path, value))
    return tuple(_elsewhere(path)) or None


def explain_name(kind: str, name: str) -> tuple[str, str] | None:
    """(what it is, hint) for a component of a later version or of GPT-NeoX; None for any other name."""
    package = known().components.get(kind, {}).get(name.rpartition(":")[2])
    if package is not None:
        return f"{name} {NOT_YET}: it will come with {package}", ""
    hint = gpt_neox()[1].get(kind, {}).get(name)
    return None if hint is None else (f"{name} is a name of GPT-NeoX that this version does not have", hint)


def names_in(path: str) -> Sequence[str]:
    """The keys of a block that are known here, "" for the top level."""
    own = known().names_in(path)
    return own if path else (*own, *gpt_neox()[0])


def _elsewhere(path: str) -> Iterator[Problem]:
    """An older spelling of one block that a config writes in another place."""
    name = path.rpartition(".")[2]
    for rule in SPELLINGS:
        block, _, last = rule.key.rpartition(".")
        if block and last == name and isinstance(rule, Moved):
            yield Problem(f"{UNKNOWN_KEY}; in {block} it means {spell(rule.to)}", path, f"set {spell(rule.to)} instead")


def _not_yet(path: str, value: Any) -> Iterator[Problem]:
    """Each key that is written inside a block of a later version, or the block when nothing is; null sets nothing."""
    key = known().find(path)
    if key is not None and value is None:
        return
    if key is None:
        yield Problem(UNKNOWN_KEY, path, _near(path))
    elif isinstance(value, Mapping) and value and known().names_in(key.path):
        for name, inner in value.items():
            yield from _not_yet(join(path, name), inner)
    else:
        said = f"is known, and refused: {key.why}" if key.why else f"{NOT_YET}: it will come with {key.distribution}"
        yield Problem(said, path, "remove it")


def _near(path: str) -> str:
    block, _, name = path.rpartition(".")
    outer = known().find(block)
    names = known().names_in(outer.path if outer else block)
    near = get_close_matches(name, names, 1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"


def _foreign(key: str, value: Any) -> Iterator[Problem]:
    """A key of GPT-NeoX alone; a value without effect gives a note."""
    what = gpt_neox()[0][key]
    message = f"is a key of GPT-NeoX that this version does not have: {what.part}"
    if value is not None and what.idle:
        yield Problem(f"does nothing in training: it is for {what.part}", key, what.hint, severity="note")
    elif any(same(value, each) for each in what.rests):
        yield Problem(f"asks for nothing; it {message}", key, severity="note")
    elif value is not None:
        yield Problem(message, key, what.hint)

"""What is said of older spellings: what each means today, in words, and which keys they are."""

from collections.abc import Iterator

from neox_gpt_neox.api import Assumed, Gone, Means, Moved, OlderSpelling, in_text, rules_of, setting_text

from neox_core.config.report import spell
from neox_core.hooks.registry import Registry


def older_spellings(registry: Registry) -> Iterator[tuple[str, OlderSpelling]]:
    """(plugin, spelling) of the keys that the installed plugins know as older."""
    return ((plugin, each) for plugin, each in rules_of(registry) if not isinstance(each, Assumed))


def today(spelling: OlderSpelling) -> str:
    """What stands in its place, in words."""
    if isinstance(spelling, Means):
        stated = ((raw, to) for raw, to in spelling.cases.items() if to is not None)
        return ", ".join(f"{in_text(raw)}: `{setting_text(*to)}`" for raw, to in stated)
    if isinstance(spelling, Moved):
        return f"`{spell(spelling.to)}`" if spelling.item is None else f"`{spelling.to}[{spelling.item}]`"
    return f"nothing: {spelling.why}" if isinstance(spelling, Gone) else ""


def targets(spelling: OlderSpelling) -> tuple[str, ...]:
    """The keys of today that it can stand for."""
    if isinstance(spelling, Means):
        return tuple(case[0] for case in spelling.cases.values() if case is not None)
    return (spelling.to,) if isinstance(spelling, Moved) else ()

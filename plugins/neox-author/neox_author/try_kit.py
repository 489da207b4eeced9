"""`python -m neox_author.try_kit`: holds what a plugin offers to the contracts, one component after the other.

An item is [plugin, kind, name], or [plugin, "", ""] for the listing itself, which tells what there is.
"""

import re
from collections.abc import Iterator
from inspect import signature
from typing import Any

from neox_author.apart import Tell, serve
from neox_author.declaration import settings_faults
from neox_author.template import kit_of
from neox_author.testing import assert_light, load_only
from neox_author.testing.clauses import heard, hold, not_applicable, raised
from neox_core.config.schema.convert import fields_of
from neox_core.errors import NeoxError
from neox_core.hooks.component import load_path
from neox_core.hooks.registry import Entry

OFFER, CLAUSE = "offer", "clause"
"""What is told: a kind and a name; or a clause that holds, and why it does not apply."""


def main() -> None:
    """Make the attempts that the parent process asks for, until it ends."""
    serve(_attempt)


def _attempt(item: Any, tell: Tell) -> str:
    plugin, kind, name = item
    told: set[tuple[str, str]] = set()

    def hear(clause: str, why_not: str) -> None:
        said = _in_general(clause), why_not
        if said not in told:
            told.add(said)
            tell(CLAUSE, *said)

    try:
        with heard(hear):
            if kind:
                _check_component(load_only(plugin), kind, name)
            else:
                _check_listing(plugin, tell)
    except AssertionError as error:
        return str(error) or raised(error, __name__)
    except NeoxError as error:
        return error.message
    except (Exception, SystemExit) as error:  # noqa: BLE001 a plugin may raise anything
        return raised(error, __name__)
    return ""


def _in_general(clause: str) -> str:
    """A clause without the case in which it was tried, which follows it."""
    said = clause.partition("; ")[0].partition(", not ")[0]
    head = said.partition(": ")[0]
    return re.sub(r" \([^()]*\)$", "", head if head.count(" ") > 1 or " became " in said else said)


def _check_listing(plugin: str, tell: Tell) -> None:
    registry = load_only(plugin).registry
    assert_light(plugin)
    for _, section in registry.sections:
        _check_settings(section.settings, f"the config section {section.name}")
    for entry in registry.entries():
        tell(OFFER, entry.kind, entry.component.name)


def _check_component(catalog: Any, kind: str, name: str) -> None:
    entry: Entry = catalog.find(kind, name)
    if entry.component.settings is not None:
        _check_settings(entry.component.settings, "it")
    missing = entry.component.missing()
    if missing:
        not_applicable("it can be imported", f"it needs {', '.join(missing)}, not installed")
        return
    entry.load()
    hold(True, "it can be imported")
    if entry.component.chooses:
        not_applicable(f"the contract of the kind {kind}", "its name stands for another component")
        return
    kit, required = kit_of(entry.definition), list(_required(entry))
    if kit and not required:
        check = load_path(kit)
        check(catalog, name, **({"trained": True} if "trained" in signature(check).parameters else {}))
    else:
        why = f"its settings have no default: {', '.join(required)}" if kit else "neox has no check of this kind"
        not_applicable(f"the contract of the kind {kind}", why)


def _required(entry: Entry) -> Iterator[str]:
    """The settings that a config has to write, so that a check cannot know them."""
    trained = hasattr(entry.load(), "train")  # a tokenizer, whose check gives it files
    for field in fields_of(entry.component.settings) if entry.component.settings and not trained else ():
        if field.required:
            yield field.name


def _check_settings(settings: type, owner: str) -> None:
    for fault in settings_faults(settings):
        raise AssertionError(f"a config can write every setting of {owner}; {fault}")
    hold(True, f"a config can write every setting of {owner}")


if __name__ == "__main__":
    main()

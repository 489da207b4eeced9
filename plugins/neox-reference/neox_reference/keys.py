"""Every key that a config could write, with who owns it: implemented, an older spelling, or of a later version."""

from collections.abc import Iterator, Sequence
from typing import Literal

from attrs import evolve, frozen
from neox_author.api import (
    allowed_in_words,
    default_in_words,
    default_of,
    known_type_in_words,
    type_in_words,
)
from neox_gpt_neox.api import KnownKey, Means, OlderSpelling, known

from neox_core.config.schema.checks import at_rest
from neox_core.config.schema.convert import Field, block_of, fields_of
from neox_core.config.schema.owners import CORE, find_owners
from neox_core.config.schema.sections import CORE_SECTIONS
from neox_core.hooks.component import ConfigSection
from neox_core.hooks.registry import Entry, Registry
from neox_reference.older import older_spellings, targets, today

State = Literal["implemented", "older spelling", "known only"]

_AREA_OF_KIND = {
    "lr schedule": "learning rate",
    "norm": "model",
    "activation": "model",
    "position": "model",
    "launcher": "launch",
    "data backend": "data",
    "tokenizer": "data",
    "sparse layout": "sparse attention",
}
OLDER = "older spellings"


@frozen
class Key:
    """One key, in words.

    path: dotted, with `_`; `<word>` in it stands for a name of the user's choice.
    allowed: what a value must be beyond its type; for a key that names a component, the installed ones.
    owner: distribution; part: the section or component of it.
    state: "known only" for a key of a later version, and for one that this version holds at a single value.
    field: what a config's value is checked against; None where nothing is.
    """

    path: str
    type: str
    help: str
    owner: str
    part: str
    area: str
    state: State = "implemented"
    default: str = ""
    allowed: str = ""
    unit: str = ""
    changes: str = "numerics"
    origin: str = "neox"
    aliases: tuple[str, ...] = ()
    field: Field | None = None

    @property
    def spellings(self) -> tuple[str, ...]:
        """Its path and those of its aliases."""
        block, dot, name = self.path.rpartition(".")
        return tuple(f"{block}{dot}{each}" for each in (name, *self.aliases))


def all_keys(registry: Registry) -> tuple[Key, ...]:
    """The keys of the core, of the installed plugins, of older documents and of later versions, in that order.

    A path is there once for each of its owners: two optimizers can both have `optimizer.params.lr`.
    """
    own = [_choosing(key, registry) for key in own_keys(registry)]
    paths = {path for key in own for path in key.spellings}
    older = [_older(plugin, each, own, registry) for plugin, each in older_spellings(registry) if each.key not in paths]
    paths.update(key.path for key in older)
    later = [_later(key) for key in known().keys.values() if key.path not in paths]
    return (*own, *older, *later)


def _borrowed(pair: tuple[Entry, ConfigSection]) -> bool:
    """Whether another plugin than that of the component has the class of the section."""
    entry, section = pair
    return section.settings.__module__.partition(".")[0] != entry.component.target.partition(".")[0]


def own_keys(registry: Registry) -> Iterator[Key]:
    """The keys of the core's and the plugins' sections, and of the components that this version can use."""
    for section in CORE_SECTIONS:
        yield from keys_of(section.settings, "", CORE, f"section {section.name}", section.name)
    for plugin, section in registry.sections:
        yield from keys_of(section.settings, "", plugin.id, f"section {section.name}", section.name)
    for entry, section in sorted(registry.sections_of_components(), key=_borrowed):
        part = f"{entry.kind} {entry.component.name}"
        yield from keys_of(section.settings, "", entry.plugin.id, part, section.name)
    for kind in registry.kinds.values():
        if (
            kind.used and kind.settings_at and kind.key.startswith(f"{kind.settings_at}.")
        ):  # no class has a field for it
            area = _AREA_OF_KIND.get(kind.name, kind.name)
            yield Key(kind.key, "text", f"Name of the {kind.name}.", CORE, f"kind {kind.name}", area)
    for entry in registry.entries():
        kind = entry.definition
        if entry.component.settings is not None and kind.used:
            part = f"{entry.kind} {entry.component.name}"
            area = _AREA_OF_KIND.get(entry.kind, entry.kind)
            yield from keys_of(entry.component.settings, kind.settings_at, entry.plugin.id, part, area)


def keys_in_blocks(registry: Registry) -> Iterator[Key]:
    """The blocks by components' names, and the same settings in them that are keys outside of them."""
    for name, entries in find_owners(registry).blocks.items():
        for entry in entries:
            part, area = f"{entry.kind} {entry.component.name}", _AREA_OF_KIND.get(entry.kind, entry.kind)
            said = f"Block of the settings of {part}, which may be keys of the config too."
            yield Key(name, "block", said, entry.plugin.id, part, area)
            if entry.component.settings is not None:
                yield from keys_of(entry.component.settings, name, entry.plugin.id, part, area)


def keys_of(cls: type, path: str, owner: str, part: str, area: str) -> Iterator[Key]:
    """The keys of one settings class and of the blocks in it."""
    for field in fields_of(cls):
        here = f"{path}.{field.name}" if path else field.name
        info, check = field.info, field.attribute.validator
        yield Key(
            path=here,
            type=type_in_words(field.type),
            help=info.help,
            owner=owner,
            part=part,
            area=area,
            state="known only" if at_rest(check) else "implemented",
            default=default_of(field),
            allowed=allowed_in_words(check),
            unit=info.unit,
            changes=info.changes,
            origin=info.origin,
            aliases=field.keys[1:],
            field=field,
        )
        block = block_of(field.type)
        if info.each:
            here = f"{here}.<{info.each}>"
            yield Key(here, "block", f"Block of one {info.each}.", owner, part, area, origin=info.origin)
        if block is not None:
            yield from keys_of(block, here, owner, part, area)


def _choosing(key: Key, registry: Registry) -> Key:
    kind = next((each for each in registry.kinds.values() if each.key == key.path), None)
    if kind is None or not registry.names(kind.name):
        return key
    return evolve(key, allowed=f"installed: {', '.join(registry.names(kind.name))}")


def _older(plugin: str, rule: OlderSpelling, own: Sequence[Key], registry: Registry) -> Key:
    """An older spelling counts as one of a later version when what it stands for is of a later version."""
    block = rule.key.partition(".")[0]
    heads = {block, *(to.partition(".")[0] for to in targets(rule))}
    area = next((key.area for key in own if key.path in heads), OLDER)
    kinds = {kind.key: kind.name for kind in registry.kinds.values() if kind.key}
    cases = [to for to in rule.cases.values() if to is not None] if isinstance(rule, Means) else []
    later = any(value in known().components.get(kinds.get(to, ""), {}) for to, value in cases)
    return Key(
        path=rule.key,
        type="true or false" if isinstance(rule, Means) and True in rule.cases else "",
        help=f"Older spelling; now {today(rule)}.",
        owner=plugin,
        part=OLDER,
        area=area,
        state="known only" if later else "older spelling",
        origin="gpt-neox",
    )


def _later(key: KnownKey) -> Key:
    return Key(
        path=key.path,
        type=known_type_in_words(key.type, key.choices),
        help=key.help,
        owner=key.distribution,
        part="not available in this version",
        area=key.area,
        state="known only",
        default=default_in_words(key.default),
        unit=key.unit,
        changes=key.changes,
        origin=key.origin,
        aliases=key.aliases,
    )

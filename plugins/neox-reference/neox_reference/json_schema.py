"""A JSON Schema (2020-12) of every key that this environment reads, so that editors complete and check config files.

It accepts both spellings of a key and the older ones, and refuses any other. It asks for no key: a config may be
several files. What it cannot say is left to `neox config check`: rules between keys, keys of components not chosen.
"""

import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

import attrs
from neox_author.api import parts_of
from neox_gpt_neox.api import Gone, Means, OlderSpelling

from neox_core.config.report import spell
from neox_core.config.schema.checks import Limits, Only, distinct, not_empty
from neox_core.config.schema.convert import Field, fields_of
from neox_core.config.schema.owners import find_owners
from neox_core.config.schema.sections import CORE_SECTIONS
from neox_core.hooks.kinds import Kind
from neox_core.hooks.registry import Entry, Registry
from neox_reference.older import older_spellings, today

DRAFT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]

_PLAIN = {bool: "boolean", int: "integer", float: "number", str: "string"}
_COMPARE = {">": "exclusiveMinimum", ">=": "minimum", "<": "exclusiveMaximum", "<=": "maximum"}
_SAID_OF = {"minLength": "string", "minItems": "array", "uniqueItems": "array"}
_QUALIFIED = "^[^:]+:[^:]+$"  # plugin:name


def schema(registry: Registry) -> Schema:
    """The whole schema."""
    root = {"$schema": DRAFT, "title": "neox config"} | _object()
    for cls in _classes(registry):
        for field in fields_of(cls):
            _add(root, "#", spell(field.name), field)
    for name, entries in find_owners(registry).blocks.items():
        _add_block(root, name, entries)
    for kind in registry.kinds.values():
        if kind.key and kind.used:
            _choose(root, kind, registry)
    for _, rule in older_spellings(registry):
        _older(root, rule)
    _part(root)
    return root


def _add_block(root: Schema, name: str, entries: Sequence[Entry]) -> None:
    """The block of a component's name, which may hold its settings."""
    spelled = spell(name)
    made = _object() | {"type": ["object", "null"]}
    made["description"] = f"Settings of {' or '.join(f'{each.kind} {each.component.name}' for each in entries)}."
    for settings in (each.component.settings for each in entries):
        for field in fields_of(settings) if settings is not None else ():
            _add(made, f"#/properties/{spelled}", field.name, field)
    root["properties"][spelled] = made
    pattern = "[-_]".join(name.split("_"))
    if pattern != spelled:
        root["patternProperties"][f"^(?!{spelled}$){pattern}$"] = {"$ref": f"#/properties/{spelled}"}


def _part(schema: Any) -> None:
    """No pattern matches a key that has a schema of its own: another layout's alias may be a key of this one."""
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        _part(inner)
    if isinstance(schema, dict) and "patternProperties" in schema:
        patterns = {}
        for pattern, made in schema["patternProperties"].items():
            own = "".join(f"(?!{name}$)" for name in schema["properties"] if re.match(pattern, name))
            patterns[f"^{own}{pattern[1:]}"] = made
        schema["patternProperties"] = patterns


def _classes(registry: Registry) -> Iterator[type]:
    """The classes whose fields are top-level keys."""
    yield from (section.settings for section in CORE_SECTIONS)
    yield from (section.settings for _, section in registry.sections)
    yield from (section.settings for _, section in registry.sections_of_components())
    for entry in registry.entries():
        if entry.component.settings is not None and not entry.definition.settings_at:
            yield entry.component.settings


def _add(block: Schema, pointer: str, name: str, field: Field) -> None:
    """A key of a block, under its own name and its others. Components may share one: then either's values are fine."""
    here = f"{pointer}/properties/{name}"
    made = _field(field, here)
    known = block["properties"].get(name)
    if known is None:
        block["properties"][name] = made
    elif known != made:
        block["properties"][name] = {"anyOf": [*known.get("anyOf", [known]), made]}
    for key in field.keys:
        pattern = "[-_]".join(key.split("_"))
        if pattern != name:
            own = f"(?!{name}$)" if key == field.name else ""
            block["patternProperties"][f"^{own}{pattern}$"] = {"$ref": here}


def _field(field: Field, pointer: str) -> Schema:
    if field.info.secret:
        return {"not": {}, "description": f"{field.info.help} A secret: it has no place in a config."}
    made = _within(_type(field.type, pointer), _limits(field.attribute.validator))
    if not field.required:
        made = _or_null(made)
    unit = f" In {field.info.unit}." if field.info.unit else ""
    made["description"] = field.info.help + unit
    if not field.required:
        default = field.default
        if isinstance(default, bool | int | float | str | tuple):
            made["default"] = list(default) if isinstance(default, tuple) else default
    return made


def _within(made: Schema, limits: Schema) -> Schema:
    """A type with what limits it; of several types each with what is said of values like it, of a list its items."""
    if "anyOf" in made:
        return {"anyOf": [_within(member, limits) for member in made["anyOf"]]}
    each = limits.get("items", {})
    if "prefixItems" in made:
        made = made | {"prefixItems": [_within(item, each) for item in made["prefixItems"]]}
    elif "items" in made:
        made = made | {"items": _within(made["items"], each)}
    kind = made.get("type")
    return made | {word: said for word, said in limits.items() if word != "items" and _SAID_OF.get(word, kind) == kind}


def _or_null(made: Schema) -> Schema:
    """`null` stands for the default."""
    allowed: Schema = {"enum": [*made["enum"], None]} if "enum" in made else {}
    if isinstance(made.get("type"), str):
        allowed["type"] = [made["type"], "null"]
    return made | allowed if allowed or not made else {"anyOf": [made, {"type": "null"}]}


def _type(kind: Any, pointer: str) -> Schema:
    origin, inner = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, types.UnionType):
        members = [_type(each, pointer) for each in inner if each is not type(None)]
        return members[0] if len(members) == 1 else {"anyOf": members}
    if isinstance(kind, type) and attrs.has(kind):
        return block(kind, pointer)
    if origin in (tuple, list):
        items = [_type(each, f"{pointer}/items") for each in inner if each is not Ellipsis]
        if origin is tuple and Ellipsis not in inner:
            return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
        return {"type": "array", "items": items[0]}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _type(inner[1], f"{pointer}/additionalProperties")}
    return {}


def block(cls: type, pointer: str) -> Schema:
    """The schema of a block of settings that lies at a JSON pointer."""
    made = _object()
    for field in fields_of(cls):
        _add(made, pointer, field.name, field)
    return made


def _object() -> Schema:
    return {"type": "object", "properties": {}, "patternProperties": {}, "additionalProperties": False}


def _limits(check: Callable[..., Any] | None) -> Schema:
    """The part of a validator that a JSON schema can express."""
    if check is None:
        return {}
    if isinstance(check, Limits):
        bounds = zip(_COMPARE.values(), (check.above, check.at_least, check.below, check.at_most), strict=True)
        return {name: bound for name, bound in bounds if bound is not None}
    if isinstance(check, Only):
        return {"enum": list(check.values)}
    if check is not_empty:
        return {"minLength": 1, "minItems": 1}
    if check is distinct:
        return {"uniqueItems": True}
    compare = getattr(check, "compare_op", None)
    if compare in _COMPARE:
        return {_COMPARE[compare]: getattr(check, "bound", 0)}
    if hasattr(check, "options"):
        return {"enum": list(check.options)}
    if hasattr(check, "member_validator"):
        return {"items": _limits(check.member_validator)}
    limits: Schema = {}
    for part in parts_of(check):
        limits |= _limits(part)
    return limits


def _choose(root: Schema, kind: Kind, registry: Registry) -> None:
    """The key that names components of a kind, and the block of their settings."""
    *outer, name = kind.key.split(".")
    parent, pointer = root, "#"
    for part in outer:
        if spell(part) not in parent["properties"]:  # the plugin that reads the block is not installed
            return
        parent, pointer = parent["properties"][spell(part)], f"{pointer}/properties/{spell(part)}"
    choice = _one_of(kind, registry)
    if outer and kind.settings_at == ".".join(outer):
        _shared_block(parent, pointer, kind, registry)
        parent["properties"][name] = _or_null(choice)
        return
    made: Schema | None = parent["properties"].get(spell(name) if parent is root else name)
    if made is None:
        return
    if kind.many:
        made["items"] = choice
    else:
        made.update(_or_null(choice) if "null" in made.pop("type") else choice)
    if not kind.settings_at:
        return
    at = kind.settings_at.rpartition(".")[2]
    cases: list[Schema] = []
    for each in registry.names(kind.name):
        for entry in registry.offers(kind.name, each):
            here = f"{pointer}/allOf/{len(cases)}/then/properties/{at}"
            cls = entry.component.settings
            settings = block(cls, here) if cls else _object()
            for rule in (
                each for _, each in older_spellings(registry) if each.key.rpartition(".")[0] == kind.settings_at
            ):
                settings["properties"][rule.key.rpartition(".")[2]] = _made_of(rule)
            case: Schema = {"properties": {name: {"enum": [each, entry.qualified]}}, "required": [name]}
            cases.append({"if": case, "then": {"properties": {at: settings}}})
    parent["allOf"] = cases


def _one_of(kind: Kind, registry: Registry) -> Schema:
    """The name of a component, qualified or not."""
    return {"anyOf": [{"enum": list(registry.names(kind.name))}, {"type": "string", "pattern": _QUALIFIED}]}


def _shared_block(parent: Schema, pointer: str, kind: Kind, registry: Registry) -> None:
    """A block that holds the settings of all components of a kind, beside the name of one."""
    parent.update(_object() | {"type": parent["type"]})
    for entry in registry.entries(kind.name):
        for field in fields_of(entry.component.settings) if entry.component.settings is not None else ():
            _add(parent, pointer, field.name, field)


def _older(root: Schema, rule: OlderSpelling) -> None:
    """An older spelling, which editors strike through."""
    *outer, name = rule.key.split(".")
    parent = root
    for part in outer:
        parent = parent.get("properties", {}).get(spell(part), {})
    if "properties" not in parent:  # settings of a component, which `_choose` has written for each
        return
    name = name if outer else spell(name)
    if name in parent["properties"]:
        known = parent["properties"][name]  # a block that was a switch: what is said of its keys holds for objects only
        known["type"] = [*known["type"], "boolean"]
        return
    made = _made_of(rule)
    parent["properties"][name] = made
    pattern = "[-_]".join(rule.key.rpartition(".")[2].split("_"))
    if pattern != name:
        parent["patternProperties"][f"^(?!{name}$){pattern}$"] = made


def _made_of(rule: OlderSpelling) -> Schema:
    made: Schema = {"deprecated": True, "description": f"Older spelling; now {today(rule)}."}
    allowed = rule.cases if isinstance(rule, Means) else rule.harmless if isinstance(rule, Gone) else None
    if allowed is not None:
        made["enum"] = [*allowed, None]
    else:
        made["type"] = ["number", "string", "boolean", "null"]
    return made

"""`neox config explain`: what a key means, apart from any config."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from neox_core.cli.offered import loaded
from neox_core.config.report import spell
from neox_core.terminal import echo, echo_json, paint
from neox_reference.explain import find_keys, older_names
from neox_reference.keys import Key, all_keys, keys_in_blocks
from neox_reference.rule_index import rules_about

_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object.")


@click.command()
@click.argument("key", metavar="KEY")
@_JSON
def explain(key: str, as_json: bool) -> None:
    """Print what KEY means: type, default, allowed values, owner, rules. Any spelling, dots for blocks."""
    registry = loaded().registry
    keys = (*all_keys(registry), *keys_in_blocks(registry))
    found = find_keys(key, keys)
    older, rules = older_names(found[0].path, registry), rules_about(found[0].path, registry)
    inner = [each.path for each in keys if each.path.rpartition(".")[0] == found[0].path]
    if as_json:
        facts = [{**dict(_facts(each)), "owner": f"{each.owner} ({each.part})"} for each in found]
        said = {"key": found[0].path, "owners": facts, "older_spellings": older, "rules": dict(rules), "keys": inner}
        echo_json(said)
    else:
        for line in _explained(found, older, rules, list(dict.fromkeys(inner))):
            echo(line)


def _explained(
    found: Sequence[Key], older: Sequence[str], rules: Sequence[tuple[str, str]], inner: Sequence[str]
) -> Iterator[str]:
    path = spell(found[0].path)
    yield paint(path, "bold")
    groups: dict[tuple[tuple[str, str], ...], list[Key]] = {}
    for each in found:
        groups.setdefault(tuple(_facts(each)), []).append(each)
    base, *others = sorted(groups, key=lambda facts: -len(groups[facts]))
    yield f"  {base[0][1]}"
    yield from _lines([*(fact for fact in base[1:] if fact[1]), ("owner", _owners(groups[base]))])
    for facts in others:  # only what differs from the most
        yield f"  {_owners(groups[facts])}"
        yield from _lines([(name, value or "-") for name, value in facts if (name, value) not in base])
    if older:
        yield f"  older spellings: {', '.join(map(spell, older))}"
    if inner:
        yield f"  keys: {', '.join(each.rpartition('.')[2] for each in inner)}"
    if rules:
        yield "  rules:"
        yield from (f"    {name}: {line}" for name, line in rules)


def _lines(facts: Sequence[tuple[str, str]]) -> Iterator[str]:
    yield from (f"    {name:<9}{value}" for name, value in facts)


def _owners(keys: Sequence[Key]) -> str:
    """As in `neox-adam (optimizer Adam, AdamW), neox-lamb (optimizer Lamb)`."""
    parts: dict[tuple[str, str], list[str]] = {}
    for key in keys:
        kind, _, name = key.part.partition(" ")
        parts.setdefault((key.owner, kind), []).append(name)
    said = {key: " ".join(filter(None, (key[1], ", ".join(names)))) for key, names in parts.items()}
    return ", ".join(f"{key[0]} ({part})" for key, part in said.items())


def _facts(key: Key) -> Iterator[tuple[str, str]]:
    """What is known of a key, but for its owner."""
    yield "help", key.help
    yield "type", key.type.replace("`", "")
    yield "default", key.default
    yield "allowed", key.allowed.replace("`", "")
    yield "unit", key.unit
    yield "changes", key.changes
    yield "origin", key.origin
    yield "also", ", ".join(key.aliases)
    yield "status", key.state

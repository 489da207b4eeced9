"""The check of a dialect: what it makes of configs with and without its keys."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from neox_author.testing.clauses import check_light, clauses, has, hold, not_applicable
from neox_core.config.problem import Problem
from neox_core.config.read.load import Loaded, Place

if TYPE_CHECKING:
    from neox_core.hooks.catalog import Catalog

OURS: Mapping[str, Any] = {"seq_length": 8, "train_iters": 10, "optimizer": {"type": "Adam", "params": {"lr": 0.01}}}
NO_KEY = "a_key_that_no_program_has"


@clauses
def check_dialect(catalog: Catalog, name: str) -> None:
    """The clauses of contracts.Dialect. Raises AssertionError with the one that does not hold."""
    entry = catalog.find("dialect", name)
    check_light(entry.component.target)
    dialect = entry.load()
    has(dialect, "a dialect", "translate", "explain", "explain_name", "names_in")
    older = dialect.older
    hold(not isinstance(older, str) and all(_is_key(each) for each in older), "`older` are top-level keys, with `_`")
    plain = _written(OURS)
    hold(dialect.translate(plain) == plain, "translate() leaves a config without its keys as it is")
    for key in older:
        _check_translated(dialect, key)
    if not older:
        not_applicable("translate() takes the keys of `older` out", "`older` is empty")
    known = dialect.names_in("")
    hold(not isinstance(known, str) and all(isinstance(each, str) for each in known), "names_in() gives keys")
    for key in known:
        said = dialect.explain(key, 1)
        right = said is not None and all(isinstance(each, Problem) for each in said)
        hold(right, f"explain() gives problems for each key that names_in() knows; of {key} it gives {said!r}")
    hold(dialect.explain(NO_KEY, 1) is None, "explain() gives None for a key that is unknown to the dialect too")
    hold(dialect.explain_name("optimizer", NO_KEY) is None, "explain_name() gives None for an unknown name")


def _is_key(key: Any) -> bool:
    return isinstance(key, str) and key.isidentifier()


def _written(values: Mapping[str, Any]) -> Loaded:
    places = {key: Place(f"config.yml:{line}:1", key) for line, key in enumerate(values, 1)}
    return Loaded(deepcopy(dict(values)), places)


def _check_translated(dialect: Any, key: str) -> None:
    for value in (2, 2.5, "text", False, None, {"enabled": True}, [1]):
        loaded = _written({**OURS, key: value})
        found = dialect.translate(loaded)
        hold(isinstance(found, Loaded), "translate() gives a Loaded")
        hold(loaded == _written({**OURS, key: value}), "translate() leaves what it is given as it is")
        hold(key not in found.values, f"translate() takes the keys of `older` out; {key} is still there")
        new = found.problems[len(loaded.problems) :]
        told = all(isinstance(each, Problem) and each.severity in ("note", "warning", "error") for each in new)
        asks = value not in (None, False)  # what asks for nothing may be left out
        hold(
            (bool(new) or not asks) and told,
            f"translate() tells what it has translated; of {key}: {value!r} it tells nothing",
        )
        kept = {name: found.values.get(name) for name in OURS if name != key}
        lost = [name for name, own in kept.items() if own is None]
        hold(not lost, f"translate() keeps all other keys; with {key} it loses {lost[:1]}")
        hold(dialect.translate(found).values == found.values, f"what is translated stays as it is; {key} does not")

"""Defaults of GPT-NeoX, at ea7aefd, that change numbers and are others here."""

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from neox_core.config.report import spell
from neox_core.config.schema.convert import shown
from neox_gpt_neox.translate import Rewriting


@frozen
class Default:
    """The values of a key that a config does not set. beside: a key that says the same."""

    key: str
    there: Any
    here: Any
    beside: str = ""


DEFAULTS = (
    Default("hidden_dropout", 0.0, 0.1),
    Default("attention_dropout", 0.0, 0.1),
    Default("weight_decay", 0.1, 0.01, "optimizer.params.weight_decay"),
)


def unset(values: Mapping[str, Any]) -> tuple[Default, ...]:
    """Those that a config says nothing of; none of a file that is a part of one, without a model."""
    if values.get("hidden_size") is None:
        return ()
    return tuple(each for each in DEFAULTS if _at(values, each.key) is None and _at(values, each.beside) is None)


def say_defaults(work: Rewriting, mark: str) -> None:
    """One note on all of them, at the key that marks the config as GPT-NeoX's."""
    found = unset(work.values)
    if found:
        listed = ", ".join(f"{spell(each.key)} {shown(each.there)} (here {shown(each.here)})" for each in found)
        said = f"marks a config of GPT-NeoX, whose defaults are others where this one says nothing: {listed}"
        work.note(mark, said, "write the values; `neox config migrate` writes GPT-NeoX's")


def assume(work: Rewriting, mark: str) -> None:
    """What GPT-NeoX takes for the optimizer of a config without: neox has no default for it."""
    place = work.places[mark]
    if work.value("hidden_size") is None:  # a part of a config
        return
    optimizer = work.value("optimizer")
    if optimizer is None or (isinstance(optimizer, dict) and work.value("optimizer.type") is None):
        work.note(mark, "without optimizer.type, GPT-NeoX takes Adam, and so does this")
        work.write("optimizer.type", "Adam", place)
    params = work.value("optimizer.params")
    if work.value("optimizer.params.lr") is None and (params is None or isinstance(params, dict)):
        work.note(mark, "without optimizer.params.lr, GPT-NeoX takes 0.001, and so does this")
        work.write("optimizer.params.lr", 0.001, place)


def _at(values: Any, path: str) -> Any:
    for part in path.split(".") if path else ("",):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values

"""The rules of every plugin, asked of small configs that choose what it offers: those of `neox plugins check`."""

from collections.abc import Iterator, Mapping
from typing import Any

from neox_core.config.problem import Problem
from neox_core.config.read.load import Loaded
from neox_core.config.report import errors
from neox_core.config.schema.adam_settings import MomentSettings
from neox_core.config.schema.structure import Config, structure
from neox_core.hooks.blame import show_traceback
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.component import Component
from neox_core.hooks.kinds import KIND_BY_NAME, Kind
from neox_core.hooks.registry import Entry, PluginInfo, Registry
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.plugins import fault_of_rules, rules_of_plugins

SMALL: Mapping[str, Any] = {
    "num_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "seq_length": 32,
    "max_position_embeddings": 32,
    "padded_vocab_size": 256,
    "data_path": "tokens",
    "train_iters": 10,
    "train_micro_batch_size_per_gpu": 4,
}
STAND_IN = "stand-in"


def rule_faults(catalog: Catalog) -> Iterator[Problem]:
    """The first thing that the rules of each plugin raise; none where a rule has something to say, or nothing."""
    whole = Catalog(catalog.manager, _with_stand_ins(catalog.registry), catalog.reports)
    shape = ClusterShape("cpu", 1, "gloo", 1)
    plain: dict[str, Any] = {
        kind.key: STAND_IN for kind in whole.registry.kinds.values() if _has_stand_in(kind) and not kind.many
    }
    for name, ask in rules_of_plugins(catalog, "neox_check_config"):
        own = [each for each in catalog.registry.entries() if each.plugin.id == name]
        for choices in (plain, *(plain | _choice(each) for each in own if _choice(each))):
            config = _config(choices, whole)
            if config is None:  # a component that needs settings, or keys that clash: nothing to ask about
                continue
            try:
                ask(config=config.seen_by(name), cluster=shape)
            except (Exception, SystemExit) as error:  # noqa: BLE001 a plugin may raise anything
                show_traceback(error)
                yield fault_of_rules(name, error, catalog)
                break


def _named_by_key(kind: Kind) -> bool:
    """Whether a config names components of the kind, which need no planner."""
    return bool(kind.key) and kind.used and not kind.plans


def _has_stand_in(kind: Kind) -> bool:
    """Whether another component can stand in for one of the kind: the rules of a plugin may call those of its own."""
    return _named_by_key(kind) and (kind.name in KIND_BY_NAME or not kind.light)


def _choice(entry: Entry) -> dict[str, Any]:
    kind = entry.definition
    if not _named_by_key(kind) or (kind.many and kind.settings_at):  # whose block holds more than the list
        return {}
    return {kind.key: [entry.qualified] if kind.many else entry.qualified}


def _config(choices: Mapping[str, Any], catalog: Catalog) -> Config | None:
    values: dict[str, Any] = dict(SMALL)
    for key, name in choices.items():
        block, dot, inner = key.partition(".")
        values[block] = {inner: name} if dot else name
    config, problems = structure(Loaded(values), catalog)
    return None if errors(problems) else config


def _with_stand_ins(registry: Registry) -> Registry:
    """What is installed, and one more component of each kind that a config chooses."""
    whole = Registry()
    for name, definer in registry.definers.items():
        whole.add_kind(definer, registry.kinds[name])
    for entry in registry.entries():
        whole.add(entry)
    for plugin, section in registry.sections:
        whole.add_offer(plugin, section)
    for kind in whole.kinds.values():
        if _has_stand_in(kind):
            settings = MomentSettings if kind.name == "optimizer" else None
            component = Component(STAND_IN, "math:floor", settings)
            whole.add(Entry(kind.name, component, PluginInfo("neox-core", "0", ""), kind))
    return whole

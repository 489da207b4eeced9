"""The rules between keys, and those about one key."""

from neox_core.hooks.component import load_path
from neox_core.hooks.registry import Registry
from neox_core.plan.planners import CONTRACTS, planner_of
from neox_core.plan.rules import RULES, components
from neox_core.plan.rules.rule import Rule, keys_of


def all_rules(registry: Registry) -> tuple[Rule, ...]:
    """The rules of the core, then those of every architecture, engine and objective."""
    planners = [planner_of(each) for each in registry.entries() if each.kind in CONTRACTS]
    planners += [load_path(each.component.planner) for each in registry.entries("objective") if each.component.planner]
    return tuple(dict.fromkeys((*RULES, *(rule for each in planners for rule in getattr(each, "rules", ())))))


def rules_about(key: str, registry: Registry) -> tuple[tuple[str, str], ...]:
    """(name, what it says) of each rule that concerns a dotted key written with `_`, or keys of its block."""
    choosing = tuple(kind.key for kind in registry.kinds_of_plugins() if kind.key and kind.used)
    more = {components.components_have_libraries: choosing}
    return tuple(
        (each.__name__, (each.__doc__ or "").strip())
        for each in all_rules(registry)
        if any(mine == key or mine.startswith(f"{key}.") for mine in (*keys_of(each), *more.get(each, ())))
    )

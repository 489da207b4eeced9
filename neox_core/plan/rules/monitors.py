"""Rules of the monitors."""

from collections.abc import Iterator

from neox_core.config.problem import Problem
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import rule


@rule("monitors")
def monitors_not_switched_off(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A monitor that is named is not switched off by its own block."""
    for chosen in config.components("monitor"):
        key = f"{chosen.entry.component.name}.enabled"
        if config.is_set(key) and not chosen.settings.enabled:
            yield config.problem(f"false contradicts monitors, which names {chosen.entry.component.name}", key)

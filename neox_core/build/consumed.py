"""Nothing of a plan is left unread: what it names is built."""

from neox_core.errors import ConfigError
from neox_core.plan.runfile import RunPlan, components_of

ON_THE_HOST = ("launcher",)


def require_consumed(plan: RunPlan) -> None:
    """Asked on rank 0, once all is built. Raises ConfigError naming the components whose settings nothing has read."""
    unread = [each for each in components_of(plan) if not each.loaded and each.kind not in ON_THE_HOST]
    if unread:
        named = "; ".join(
            f"{each.kind} {each.name} ({', '.join(each.settings) or 'without settings'})" for each in unread
        )
        raise ConfigError(f"nothing reads a part of this configuration: {named}", hint="remove it from the config")

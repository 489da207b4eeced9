"""Nothing of a plan is left unread: what it names is built."""

from neox_core.errors import ConfigError
from neox_core.plan.runfile import RunPlan, components_of

NOT_BUILT = ("launcher", "kernel")
"""A launcher is used on the host; of the kernels that are offered for an op, `build.kernels.choose` takes one."""


def require_consumed(plan: RunPlan) -> None:
    """Asked on rank 0, once all is built. Raises ConfigError naming the components whose settings nothing has read."""
    unread = [each for each in components_of(plan) if not each.loaded and each.kind not in NOT_BUILT]
    if unread:
        named = "; ".join(
            f"{each.kind} {each.name} ({', '.join(each.settings) or 'without settings'})" for each in unread
        )
        raise ConfigError(f"nothing reads a part of this configuration: {named}", hint="remove it from the config")

"""Checks that a rank has read every component of its plan."""

from neox_core.errors import ConfigError
from neox_core.plan.runfile import RunPlan, components_of

NOT_BUILT = ("launcher", "kernel")
"""Launchers are used on the host; of the kernels that are offered for an op, `kernels.choose` loads one."""


def require_consumed(plan: RunPlan, ledger: set[str]) -> None:
    """Called on rank 0 once everything is built, with the ledger of `noting`.

    Raises ConfigError that names the components that nothing has read.
    """
    unread = [each for each in components_of(plan) if each.identity not in ledger and each.kind not in NOT_BUILT]
    if unread:
        named = "; ".join(
            f"{each.kind} {each.name} ({', '.join(each.settings) or 'without settings'})" for each in unread
        )
        raise ConfigError(f"nothing reads a part of this configuration: {named}", hint="remove it from the config")

"""What a setting, a plugin, the loader or the plan says of a broken rule."""

from attrs import frozen

from neox_core.plan.cluster import Machine

CPU, GPU = Machine(0, 4), Machine(4, 4)


@frozen
class Said:
    """Sets that break a rule, a part of what is said, sets that just hold it."""

    broken: tuple[str, ...]
    said: str
    held: tuple[str, ...] = ()
    machine: Machine = CPU

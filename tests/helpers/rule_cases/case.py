"""What breaks a rule and what just holds it."""

from neox_core.plan.cluster import Machine

CPU, GPU = Machine(0, 4), Machine(2, 4)
# sets that break it, what is said, sets that just hold it, machine
Case = tuple[tuple[str, ...], str, tuple[str, ...], Machine]

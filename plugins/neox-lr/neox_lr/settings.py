"""What can be set under scheduler.params."""

from typing import Any, Literal

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting


def _rate(default: Any, help: str) -> Any:
    return setting(default, help=help, check=v.optional(v.ge(0)), origin="deepspeed")


def _steps(default: Any, help: str, least: int = 1) -> Any:
    return setting(default, help=help, check=v.optional(v.ge(least)), unit="steps", origin="deepspeed")


def _ratio(default: float, help: str) -> Any:
    return setting(default, help=help, check=v.and_(v.ge(0), v.le(1)), origin="deepspeed")


def _momentum(help: str, *checks: Any) -> Any:
    check = v.optional(v.and_(v.ge(0), *checks))
    return setting(None, help=f"{help} Of cycle_momentum.", check=check, origin="deepspeed")


@frozen
class WarmupSettings:
    """A ramp, then the highest rate."""

    warmup_min_lr: float = _rate(0.0, "Rate at which the ramp begins.")
    warmup_max_lr: float | None = _rate(None, "Rate at which the ramp ends. Default: optimizer.params.lr.")
    warmup_num_steps: int = _steps(1000, "Length of the ramp; 1 counts as 2.")
    warmup_type: Literal["log", "linear"] = setting("log", help="Shape of the ramp.", origin="deepspeed")


@frozen
class WarmupDecaySettings(WarmupSettings):
    """A ramp, then a straight line to 0."""

    total_num_steps: int | None = _steps(None, "Step at which the rate is 0. Default: train-iters.")


@frozen
class WarmupCosineSettings:
    """Shares of optimizer.params.lr: a ramp to all of it, then half a cosine."""

    warmup_min_ratio: float = _ratio(0.0, "Share at which the ramp begins.")
    warmup_num_steps: int = _steps(1000, "Length of the ramp; 1 counts as 2.")
    warmup_type: Literal["log", "linear"] = setting("log", help="Shape of the ramp.", origin="deepspeed")
    cos_min_ratio: float = _ratio(0.0001, "Share at which the cosine ends.")
    total_num_steps: int | None = _steps(None, "Step at which the cosine ends. Default: train-iters.")


@frozen
class OneCycleSettings:
    """Up, down, and further down (arXiv:1803.09820)."""

    cycle_min_lr: float = setting(help="Rate at both ends of the cycle.", check=v.ge(0), origin="deepspeed")
    cycle_max_lr: float = setting(help="Rate at its top.", check=v.ge(0), origin="deepspeed")
    cycle_first_step_size: int = _steps(2000, "Steps up.")
    cycle_second_step_size: int | None = _steps(None, "Steps down. Default: as many as up.", 0)
    cycle_first_stair_count: int = setting(
        0, help="Stairs on the way up; 0: a straight line.", check=v.ge(0), origin="deepspeed"
    )
    cycle_second_stair_count: int | None = setting(
        None,
        help="Stairs on the way down; 0: a straight line. Default: as many as up.",
        check=v.optional(v.ge(0)),
        origin="deepspeed",
    )
    decay_lr_rate: float = _rate(0.0, "After the cycle: cycle_min_lr / (1 + rate x steps / decay_step_size).")
    decay_step_size: int = _steps(0, "Steps of one such decay; 0: the rate stays at cycle_min_lr.", 0)
    cycle_momentum: bool = setting(
        True,
        help="Cycle the momentum against the rate: the first of the betas, with 0.99 as the second, or `momentum`.",
        origin="deepspeed",
    )
    cycle_min_mom: float | None = _momentum("Momentum where the rate is cycle_max_lr. Default: 0.8.", v.lt(1))
    cycle_max_mom: float | None = _momentum("Momentum where the rate is cycle_min_lr. Default: 0.9.", v.lt(1))
    decay_mom_rate: float | None = _momentum(
        "After the cycle: cycle_max_mom x (1 + rate x steps / decay_step_size). Default: 0."
    )

    def __attrs_post_init__(self) -> None:
        for name in ("cycle_min_mom", "cycle_max_mom", "decay_mom_rate"):
            if getattr(self, name) is not None and not self.cycle_momentum:
                raise ValueError(f"{name} does nothing while cycle_momentum is false")


@frozen
class RangeTestSettings:
    """A rate that only grows, to find the one that breaks (arXiv:1506.01186)."""

    lr_range_test_min_lr: float = _rate(1e-3, "Rate at the start.")
    lr_range_test_step_size: int = _steps(2000, "Steps of one unit of growth.")
    lr_range_test_step_rate: float = setting(
        1.0, help="Growth of one unit, in starting rates.", check=v.ge(0), origin="deepspeed"
    )
    lr_range_test_staircase: bool = setting(
        False, help="Grow once every lr_range_test_step_size steps, not with every step.", origin="deepspeed"
    )

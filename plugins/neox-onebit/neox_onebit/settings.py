"""The settings under optimizer.params."""

from typing import Any, Literal

from attrs import frozen
from attrs import validators as v

from neox_core.api import MomentSettings, setting


def _steps(default: int, help: str) -> Any:
    return setting(default, help=help, check=v.ge(1), unit="steps", origin="deepspeed")


@frozen
class OneBitSettings(MomentSettings):
    """Settings that the three optimizers share."""

    cuda_aware: bool = setting(
        False,
        help="Give device memory to the MPI library. Does nothing: nccl takes device memory, gloo the host's.",
        changes="speed",
        origin="deepspeed",
    )
    comm_backend_name: Literal["nccl", "gloo"] = setting(
        "nccl",
        help="Communication library of the exchange; must be that of the process group.",
        changes="speed",
        origin="deepspeed",
    )
    variance_floor: float = setting(
        0.003,
        help="Lower bound of a frozen variance, as a share of its parameter's mean; 0: none, as in the papers.",
        check=v.and_(v.ge(0), v.le(1)),
    )


@frozen
class OneBitAdamSettings(OneBitSettings):
    freeze_step: int = _steps(100_000, "Steps of plain Adam before momenta are compressed.")
    compatibility: Literal["paper", "deepspeed"] = setting(
        "paper",
        help="deepspeed: compute what DeepSpeed's OnebitAdam did, without corrections for the start or a floor of the "
        "variance and with one scale for each group of parameters.",
    )


@frozen
class ZeroOneAdamSettings(OneBitSettings):
    bias_correction: bool = setting(True, help="Correct the moments for starting at zero.", origin="deepspeed")
    var_freeze_step: int = _steps(100_000, "Last step at which the variance may be updated.")
    var_update_scaler: int = setting(
        16, help="Updates of the variance until their interval doubles.", check=v.ge(1), origin="deepspeed"
    )
    local_step_scaler: int = _steps(32_678, "Steps after var_freeze_step until the interval of exchanges doubles.")
    local_step_clipper: int = _steps(16, "Longest interval of exchanges.")


@frozen
class OneBitLambSettings(OneBitSettings):
    bias_correction: bool = setting(True, help="Correct the moments for starting at zero.", origin="deepspeed")
    freeze_step: int = _steps(100_000, "Steps of plain LAMB before momenta are compressed.")
    max_coeff: float = setting(10.0, help="Upper bound of a layer's trust ratio.", check=v.gt(0), origin="deepspeed")
    min_coeff: float = setting(0.01, help="Lower bound of a layer's trust ratio.", check=v.ge(0), origin="deepspeed")
    coeff_beta: float = setting(
        0.9,
        help="Decay of the running trust ratio that is frozen.",
        check=v.and_(v.ge(0), v.lt(1)),
        origin="deepspeed",
    )
    factor_max: float = setting(
        4.0, help="Upper bound of the factor on the frozen trust ratio.", check=v.gt(0), origin="deepspeed"
    )
    factor_min: float = setting(
        0.5, help="Lower bound of the factor on the frozen trust ratio.", check=v.gt(0), origin="deepspeed"
    )
    factor_threshold: float = setting(
        0.1,
        help="Largest change of that factor from one step to the next, as a share of it.",
        check=v.gt(0),
        origin="deepspeed",
    )

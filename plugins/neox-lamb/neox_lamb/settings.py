"""The settings of Lamb."""

from attrs import frozen
from attrs import validators as v

from neox_core.api import MomentSettings, setting


@frozen
class LambSettings(MomentSettings):
    weight_decay: float = setting(
        0.0,
        help="Weight decay, except for parameters that are declared to have none.",
        check=v.ge(0),
        origin="deepspeed",
    )
    bias_correction: bool = setting(True, help="Correct the moments for starting at zero.", origin="deepspeed")
    max_coeff: float = setting(10.0, help="Upper bound of a layer's trust ratio.", check=v.gt(0), origin="deepspeed")
    min_coeff: float = setting(0.01, help="Lower bound of a layer's trust ratio.", check=v.ge(0), origin="deepspeed")

    fused: bool = setting(
        True,
        help="On a CPU, step by compiled code where there is a compiler; false: by torch.",
        changes="speed",
    )

    def __attrs_post_init__(self) -> None:
        if self.min_coeff > self.max_coeff:
            raise ValueError(f"min_coeff {self.min_coeff} is more than max_coeff {self.max_coeff}")

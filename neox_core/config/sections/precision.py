"""Precision of weights and matmuls."""

from typing import Literal

from attrs import frozen

from neox_core.config.checks import above, at_least, only
from neox_core.config.setting import setting


@frozen
class Fp16Block:
    """Half precision with loss scaling."""

    enabled: bool = setting(False, help="Train in fp16.", aliases=("fp16",), origin="deepspeed")
    auto_cast: bool = setting(False, help="Cast inputs to fp16.", origin="deepspeed", check=only(False))
    loss_scale: float = setting(0.0, help="Factor of the loss; 0: dynamic.", check=at_least(0), origin="deepspeed")
    initial_scale_power: int = setting(
        16,
        help="The dynamic scale begins at 2 to this power.",
        check=at_least(0),
        aliases=("initial_loss_scale_power",),
        origin="deepspeed",
    )
    loss_scale_window: int = setting(
        1000, help="Steps without overflow until the scale doubles.", unit="steps", check=above(0), origin="deepspeed"
    )
    hysteresis: int = setting(2, help="Overflows until the scale falls.", check=above(0), origin="deepspeed")
    consecutive_hysteresis: bool = setting(False, help="Only overflows in a row count.", origin="deepspeed")
    min_loss_scale: int = setting(1, help="Least dynamic scale.", check=above(0), origin="deepspeed")


@frozen
class Bf16Block:
    """bfloat16 without loss scaling."""

    enabled: bool = setting(False, help="Train in bf16: weights and matmuls, with fp32 masters.", origin="deepspeed")


@frozen
class AutocastBlock:
    """Weights stay fp32, matmuls run in the lower precision."""

    enabled: bool = setting(False, help="Switch autocast on.", origin="deepspeed")
    dtype: Literal["bfloat16", "bf16"] = setting("bfloat16", help="Precision of the matmuls.", origin="deepspeed")


@frozen
class PrecisionSection:
    """Precision of weights and matmuls. At most one of the three blocks may be enabled; none: fp32."""

    fp16: Fp16Block | None = setting(None, help="Half precision.", origin="deepspeed")
    bf16: Bf16Block | None = setting(None, help="bfloat16.", aliases=("bfloat16",), origin="deepspeed")
    torch_autocast: AutocastBlock | None = setting(None, help="torch.autocast around the model.", origin="deepspeed")
    attention_softmax_in_fp32: bool = setting(
        False, help="Compute the softmax of attention in fp32.", origin="megatron"
    )
    fp16_lm_cross_entropy: bool = setting(False, help="Compute the loss in fp16.", origin="megatron")

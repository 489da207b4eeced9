"""Precision of weights and matmuls."""

from typing import Any, Literal

from attrs import frozen

from neox_core.config.schema.checks import above, at_least
from neox_core.config.schema.convert import shown
from neox_core.config.schema.setting import setting


def _deepspeed(default: Any, *, help: str, **more: Any) -> Any:
    """A setting of DeepSpeed's blocks."""
    return setting(default, help=help, origin="deepspeed", **more)


@frozen
class Fp16Block:
    """Half precision with loss scaling."""

    enabled: bool = _deepspeed(False, help="Train in fp16.", aliases=("fp16",))
    auto_cast: bool = _deepspeed(False, help="Cast floating-point inputs to fp16; tokens stay integers.")
    loss_scale: float = _deepspeed(0.0, help="Factor of the loss; 0: dynamic.", check=at_least(0))
    initial_scale_power: int = _deepspeed(
        16,
        help="The dynamic scale starts at 2 to this power.",
        check=at_least(0),
        aliases=("initial_loss_scale_power",),
    )
    loss_scale_window: int = _deepspeed(
        1000, help="Steps without overflow until the scale doubles.", unit="steps", check=above(0)
    )
    hysteresis: int = _deepspeed(2, help="Overflows until the scale is halved.", check=above(0))
    consecutive_hysteresis: bool = _deepspeed(False, help="Count only overflows in a row.")
    min_loss_scale: int = _deepspeed(1, help="Smallest dynamic scale.", check=above(0))


@frozen
class Bf16Block:
    """bfloat16 without loss scaling."""

    enabled: bool = _deepspeed(False, help="Train in bf16: weights and matmuls, with fp32 masters.")


@frozen
class AutocastBlock:
    """Weights stay fp32, matmuls run in the lower precision."""

    enabled: bool = _deepspeed(False, help="Switch autocast on.")
    dtype: Literal["bfloat16", "bf16"] = _deepspeed("bfloat16", help="Precision of the matmuls.")


def _opt_level(instance: Any, field: Any, value: str) -> None:
    if value in ("O2", "O3"):
        raise ValueError(f"{value} keeps weights in half precision, which amp no longer supports; use bf16 or fp16")
    if value not in ("O0", "O1"):
        raise ValueError(f"must be O0 or O1, not {shown(value)}")


@frozen
class AmpBlock:
    """Apex' mixed precision, by torch.autocast in bfloat16. O0 is fp32."""

    enabled: bool = _deepspeed(False, help="Run matmuls in half precision.")
    opt_level: str = _deepspeed(
        "O1", help="O1: weights stay fp32, matmuls are cast; O0: nothing is cast.", check=_opt_level
    )


@frozen
class DataTypesBlock:
    """Types of tensors that are neither weights nor activations."""

    grad_accum_dtype: Literal["fp32", "fp16", "bf16"] | None = _deepspeed(
        None, help="Type in which gradients are accumulated. Default: the model's."
    )


@frozen
class PrecisionSection:
    """Precision of weights and matmuls. At most one of the four blocks may be enabled; none: fp32."""

    fp16: Fp16Block | None = _deepspeed(None, help="Half precision.")
    bf16: Bf16Block | None = _deepspeed(None, help="bfloat16.", aliases=("bfloat16",))
    torch_autocast: AutocastBlock | None = _deepspeed(None, help="torch.autocast around the model.")
    amp: AmpBlock | None = _deepspeed(None, help="Mixed precision as Apex had it.")
    data_types: DataTypesBlock = _deepspeed(DataTypesBlock(), help="Types of other tensors.")
    fp16_lm_cross_entropy: bool = setting(False, help="Compute the loss in fp16.", origin="megatron")

    @property
    def dtype(self) -> Literal["fp32", "bf16", "fp16"]:
        """The type of the model's weights."""
        if self.fp16 is not None and self.fp16.enabled:
            return "fp16"
        return "bf16" if self.bf16 is not None and self.bf16.enabled else "fp32"

    @property
    def autocast(self) -> Literal["bf16"] | None:
        """The precision of the matmuls of a model in fp32; None: fp32."""
        amp, torch = self.amp, self.torch_autocast
        cast = (amp is not None and amp.enabled and amp.opt_level == "O1") or (
            torch is not None and torch.enabled and torch.dtype in ("bfloat16", "bf16")
        )
        return "bf16" if cast else None

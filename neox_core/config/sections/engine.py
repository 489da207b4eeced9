"""Optimizer, precision and ZeRO: the keys that the engine knows by the same names."""

from typing import Any, Literal

from attrs import field, frozen

from neox_core.config.checks import above, at_least, only
from neox_core.config.setting import METADATA, SettingInfo, setting


@frozen
class OptimizerBlock:
    """`params` are the settings of the chosen optimizer: `neox plugins info NAME` lists them."""

    type: str = setting(help="Name of the optimizer.", origin="deepspeed")
    params: dict[str, Any] = field(
        factory=dict, kw_only=True, metadata={METADATA: SettingInfo("Settings of the optimizer.", origin="deepspeed")}
    )


@frozen
class OptimizerSection:
    """Which optimizer, and its settings."""

    optimizer: OptimizerBlock = setting(help="Block with the optimizer's type and params.", origin="deepspeed")
    zero_allow_untested_optimizer: bool = setting(
        False, help="Shard an optimizer whose author has not tested it at this ZeRO stage.", origin="deepspeed"
    )


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


@frozen
class ZeroBlock:
    """Sharding of the optimizer's state."""

    stage: Literal[0, 1, 2, 3] = setting(
        0, help="0: every rank has all; 1: the optimizer's state is sharded.", check=only(0, 1), origin="deepspeed"
    )
    allgather_bucket_size: int = setting(
        500_000_000,
        help="Most elements gathered at once.",
        unit="elements",
        check=above(0),
        changes="speed",
        origin="deepspeed",
    )
    reduce_bucket_size: int = setting(
        500_000_000,
        help="Most elements reduced at once.",
        unit="elements",
        check=above(0),
        changes="speed",
        origin="deepspeed",
    )
    overlap_comm: bool = setting(
        False, help="Reduce gradients while the backward pass runs.", changes="speed", origin="deepspeed"
    )
    reduce_scatter: bool = setting(
        True,
        help="Reduce each shard to its owner instead of everything to everyone.",
        changes="speed",
        origin="deepspeed",
    )
    contiguous_gradients: bool = setting(
        True, help="Copy gradients to one buffer as they appear.", changes="speed", origin="deepspeed"
    )
    round_robin_gradients: bool = setting(
        False, help="Deal gradients to ranks in turn.", check=only(False), changes="speed", origin="deepspeed"
    )
    allgather_partitions: bool = setting(
        True,
        help="Collect updated shards by all-gather: the engine knows no other way.",
        check=only(True),
        origin="deepspeed",
    )
    cpu_offload: bool = setting(False, help="Optimizer on the host.", check=only(False), origin="deepspeed")
    load_from_fp32_weights: bool = setting(
        True, help="Start the fp32 masters from saved fp32 weights.", check=only(True), origin="deepspeed"
    )


@frozen
class ZeroSection:
    """ZeRO, DeepSpeed's sharding over data-parallel ranks."""

    zero_optimization: ZeroBlock = setting(ZeroBlock(), help="Block of ZeRO settings.", origin="deepspeed")

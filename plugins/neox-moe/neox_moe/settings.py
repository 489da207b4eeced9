"""The keys of a mixture of experts."""

from typing import Literal

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting

TOPK_BALANCE = 0.01
"""Weight of the load balancing loss of the router topk, where the config says none."""


@frozen
class MoESettings:
    moe_num_experts: int = setting(
        1,
        help="Experts of a layer, each an MLP of intermediate-size without biases. One expert is the MLP itself.",
        check=v.gt(0),
        origin="gpt-neox",
    )
    moe_top_k: int = setting(1, help="Experts that a token is sent to.", check=v.gt(0), origin="gpt-neox")
    moe_router_type: Literal["sinkhorn", "topk"] = setting(
        "sinkhorn",
        help="How experts are chosen. topk: those with the highest probabilities. sinkhorn: in training those of a "
        "balanced assignment of all tokens of a micro-batch, in evaluation as topk.",
        origin="gpt-neox",
    )
    moe_normalize_expert_weights: bool = setting(
        False, help="Divide the weights of a token's experts by their sum, as Mixtral does."
    )
    moe_loss_coeff: float | None = setting(
        None,
        help="Coefficient of the load balancing loss, which is added up over the layers. "
        f"Default: {TOPK_BALANCE} with topk, 0 with sinkhorn, which balances by itself.",
        check=v.optional(v.ge(0)),
        origin="gpt-neox",
    )
    moe_z_loss_coeff: float = setting(
        0.0,
        help="Coefficient of the z-loss, the mean square of the logarithm of the sum of the exponentials of a token's "
        "router logits.",
        check=v.ge(0),
    )
    moe_train_capacity_factor: float | None = setting(
        None,
        help="In training an expert takes this number times the tokens that equal shares would give it, and drops "
        "those after them. Default: nothing is dropped.",
        check=v.optional(v.gt(0)),
        origin="gpt-neox",
    )

    moe_expert_parallel_size: int = setting(
        1,
        help="Data-parallel ranks over which the experts of a layer are spread: a token is sent to the ranks with its "
        "experts, and back. The number of experts and that of data-parallel ranks are multiples of it.",
        check=v.gt(0),
        changes="speed",
        origin="gpt-neox",
    )

    @property
    def balance(self) -> float:
        """The coefficient of the load balancing loss."""
        if self.moe_loss_coeff is not None:
            return self.moe_loss_coeff
        return TOPK_BALANCE if self.moe_router_type == "topk" else 0.0

"""Which optimizer a run uses, and its settings."""

from typing import Any

from attrs import Factory, frozen

from neox_core.config.schema.checks import at_least
from neox_core.config.schema.setting import setting


@frozen
class OptimizerBlock:
    """`params` are the settings of the chosen optimizer: `neox plugins info NAME` lists them."""

    type: str = setting(help="Name of the optimizer.", origin="deepspeed")
    params: dict[str, Any] = setting(Factory(dict), help="Settings of the optimizer.", origin="deepspeed")


@frozen
class OptimizerSection:
    """Which optimizer, and its settings."""

    optimizer: OptimizerBlock = setting(help="Block with the optimizer's type and params.", origin="deepspeed")


@frozen
class RegularizationSection:
    """Against overfitting and exploding gradients."""

    weight_decay: float = setting(
        0.01,
        help="Decay of the weights, except biases and gains. `optimizer.params.weight_decay` must agree.",
        check=at_least(0),
        origin="megatron",
    )
    gradient_clipping: float = setting(
        1.0, help="Largest norm of the whole gradient; 0 switches clipping off.", check=at_least(0), origin="deepspeed"
    )

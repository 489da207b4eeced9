"""How data-parallel ranks exchange gradients."""

from typing import Literal

from attrs import frozen

from neox_core.api import setting
from neox_core.config.schema.checks import above


@frozen
class CommunicationSection:
    """How gradients are averaged over data-parallel ranks."""

    communication_data_type: Literal["fp32", "fp16", "bf16"] | None = setting(
        None, help="Precision in which gradients are sent. Default: their own.", origin="deepspeed"
    )
    prescale_gradients: bool = setting(
        False, help="Divide gradients by the number of ranks before they are summed.", origin="deepspeed"
    )
    gradient_predivide_factor: float = setting(
        1.0,
        help="Divide gradients by this before they are summed, and by the rest after.",
        check=above(0),
        origin="deepspeed",
    )
    sparse_gradients: bool = setting(
        False,
        help="Send only the rows of the embedding that a step has used; for an embedding that is not tied to the head.",
        changes="speed",
        origin="deepspeed",
    )

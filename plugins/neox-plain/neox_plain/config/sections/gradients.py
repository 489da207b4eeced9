"""Factors of gradients, for a run that continues what another program computed with other ones."""

from typing import Any

from attrs import frozen

from neox_core.config.schema.checks import Limits
from neox_core.config.schema.convert import shown
from neox_core.config.schema.setting import setting

Factors = tuple[tuple[str, float], ...]
"""Pairs of a parameter's name, with `*` for any text, and its factor; the first whose name matches counts."""


MOST = 1_000_000.0
"""The largest factor: a larger one is a slip of the pen, and overflows in fp16."""


def _bounded(instance: Any, field: Any, value: Factors) -> None:
    for name, factor in value:
        if not name or not 0 <= factor <= MOST:
            given = f"{shown(name)} and {shown(factor)}"
            raise ValueError(f"must be pairs of a name and a factor from 0 to {MOST:,.0f}, not {given}")


@frozen
class GradientsSection:
    """Factors of gradients."""

    gradient_scale: float = setting(
        1.0,
        help="Factor of all gradients, before they are clipped. GPT-NeoX's pipelines add up the gradients of the"
        " micro-batches and do not divide by their number.",
        check=Limits(above=0, at_most=MOST),
    )
    gradient_norm_counts: Factors = setting(
        (),
        check=_bounded,
        help="Pairs of a parameter's name and how often it counts in the norm that clips gradients; 0: not."
        " GPT-NeoX's fp32 pipelines leave some out.",
    )
    lr_scales: Factors = setting(
        (),
        check=_bounded,
        help="Pairs of a parameter's name, such as layers.*.mlp.down.bias, and the factor of its learning rate.",
    )

"""Factors of gradients, for a run that continues what another program computed with other ones."""

from typing import Any

from attrs import frozen

from neox_core.config.schema.checks import above
from neox_core.config.schema.convert import shown
from neox_core.config.schema.setting import setting

Factors = tuple[tuple[str, float], ...]
"""Pairs of a parameter's name, with `*` for any text, and its factor; the first whose name matches counts."""


def _none_below_zero(instance: Any, field: Any, value: Factors) -> None:
    for name, factor in value:
        if not name or not 0 <= factor < float("inf"):
            given = f"{shown(name)} and {shown(factor)}"
            raise ValueError(f"must be pairs of a name and a factor of 0 or more, not {given}")


@frozen
class GradientsSection:
    """Factors of gradients."""

    gradient_scale: float = setting(
        1.0,
        help="Factor of all gradients, before they are clipped. GPT-NeoX's pipelines add up the gradients of the"
        " micro-batches and do not divide by their number.",
        check=above(0),
    )
    gradient_norm_counts: Factors = setting(
        (),
        check=_none_below_zero,
        help="Pairs of a parameter's name and how often it counts in the norm that clips gradients; 0: not."
        " GPT-NeoX's fp32 pipelines leave some out.",
    )
    lr_scales: Factors = setting(
        (),
        check=_none_below_zero,
        help="Pairs of a parameter's name, such as layers.*.mlp.down.bias, and the factor of its learning rate.",
    )

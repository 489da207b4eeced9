"""What can be set of the decays of lr-decay-style that have a shape, or stages."""

import math
from typing import Any, Literal

from attrs import Attribute, frozen
from attrs import validators as v

from neox_core.api import setting
from neox_core.untrusted import short

Fall = Literal["linear", "cosine", "sqrt"]
"""From one rate to another: a straight line, half a cosine, or 1 - sqrt(t), which falls fast and then slowly."""


@frozen
class WSDSettings:
    lr_wsd_decay_fraction: float = setting(
        0.1,
        help="Share of lr-decay-iters at its end in which the rate falls to min-lr.",
        unit="fraction",
        check=v.and_(v.gt(0), v.le(1)),
    )
    lr_wsd_decay_style: Fall = setting("linear", help="Shape of that fall; sqrt: 1 - sqrt(t).", origin="megatron")


STYLES = ("constant", "linear", "cosine", "sqrt")


def _whole(instance: Any, attribute: "Attribute[Any]", value: tuple[dict[str, Any], ...]) -> None:
    for number, stage in enumerate(value, start=1):
        fault = _fault(stage)
        if fault:
            raise ValueError(f"stage {number}: {fault}")
    if abs(sum(stage["share"] for stage in value) - 1) > 1e-6:
        shares = " + ".join(f"{stage['share']:g}" for stage in value) or "none"
        raise ValueError(f"the shares of the stages have to add up to 1, and are {shares}")


def _fault(stage: dict[str, Any]) -> str:
    if unknown := sorted(stage.keys() - {"style", "share", "to"}):
        return f"has style, share and perhaps `to`, and not {short(', '.join(map(str, unknown)))}"
    if stage.get("style") not in STYLES:
        return f"style must be one of {', '.join(STYLES)}, not {short(stage.get('style'))}"
    if not _number(stage.get("share")) or not 0 < stage["share"] <= 1:
        return f"share must be above 0 and at most 1, not {short(stage.get('share'))}"
    if stage["style"] == "constant" and "to" in stage:
        return "a constant stage keeps its rate: leave out `to`"
    if not _number(stage.get("to", 0.0)) or stage.get("to", 0.0) < 0:
        return f"to must be a learning rate of 0 or more, not {short(stage['to'])}"
    return ""


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


@frozen
class StagedSettings:
    lr_stages: tuple[dict[str, Any], ...] = setting(
        help="Stages of the decay, in order: [{style: cosine, share: 0.8, to: 6.0e-5}, {style: linear, share: 0.2}]. "
        "Style: constant, linear, cosine or sqrt. share: of the steps between the warm-up and lr-decay-iters. "
        "to: learning rate at the end of the stage, by default min-lr.",
        check=_whole,
    )

from collections.abc import Iterator
from typing import Any

from neox_core.api import Component, Problem, hookimpl
from neox_positions.rules import scaling_is_whole

NOTHING, IN_SCORES = "neox_positions.plan:nothing", "neox_positions.plan:in_scores"


@hookimpl
def neox_positions() -> list[Component]:
    return [
        Component(
            "learned",
            "neox_positions.learned:Learned",
            summary="A trained table, added to the embeddings",
            planner="neox_positions.plan:learned",
        ),
        Component(
            "sinusoidal",
            "neox_positions.sinusoidal:Sinusoidal",
            summary="Fixed sines and cosines (arXiv:1706.03762)",
            planner=NOTHING,
        ),
        Component(
            "rotary",
            "neox_positions.rotary:Rotary",
            "neox_positions.settings:RotarySettings",
            summary="Queries and keys turned by their position (arXiv:2104.09864)",
            ops=(("rotary_pair", "neox_positions.rotary:rotary_pair"),),
            planner=IN_SCORES,
        ),
        Component(
            "rpe",
            "neox_positions.rpe:RelativeBias",
            "neox_positions.settings:RelativeSettings",
            summary="A trained bias of the scores by distance, T5's (arXiv:1910.10683)",
            planner="neox_positions.plan:relative",
        ),
        Component(
            "alibi",
            "neox_positions.alibi:Alibi",
            summary="Scores fall with distance (arXiv:2108.12409)",
            planner=IN_SCORES,
        ),
        Component(
            "none",
            "neox_positions.none:NoPosition",
            summary="Nothing: the causal mask alone tells the order",
            planner=NOTHING,
        ),
    ]


@hookimpl
def neox_check_config(config: Any) -> Iterator[Problem]:
    (position,) = config.components("position")
    if position.entry.plugin.id != "neox-positions":
        return
    if position.entry.component.name == "rotary":
        head_dim = config.value("head-dim") or config.value("hidden-size") // config.value("num-attention-heads")
        turned = int(head_dim * position.settings.rotary_pct)
        if turned < 2 or turned % 2:
            yield Problem(
                f"turns {turned} of the {head_dim} dimensions of a head",
                key="rotary-pct",
                hint="their number must be even and at least 2",
            )
        yield from scaling_is_whole(config, position.settings, turned)
    if position.entry.component.name == "rpe":
        exact, farthest = position.settings.rpe_num_buckets // 2, position.settings.rpe_max_distance
        if farthest <= exact:
            yield Problem(
                f"{farthest} is not beyond the {exact} distances that have a bucket of their own",
                key="rpe-max-distance",
                hint="take fewer rpe-num-buckets, or a larger distance",
            )

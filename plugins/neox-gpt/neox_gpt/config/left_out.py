"""The decoder that an export of a run has: without what its model changes leave out. Light."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from attrs import evolve

from neox_core.contracts.architecture import Untold
from neox_core.errors import ConfigError
from neox_gpt.config.assemble import linear_layers
from neox_gpt.config.size import tell_change

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from neox_core.config.schema.structure import Config
    from neox_gpt.config.plan import GPTPlan

HEADS, INNER = ".attention.output", ".mlp.up"
"""Ends of the names of layers whose units may be left out."""


def exported_plan(plan: GPTPlan, config: Config) -> GPTPlan:
    """What an export of a run of a valid config has. Raises ConfigError where it cannot have it, or nobody tells."""
    return smaller_plan(evolve(plan, changes=None), dict(_kept(plan, config)))


def _kept(plan: GPTPlan, config: Config) -> Iterator[tuple[str, int]]:
    """The layers of which changes leave units out, and how many units stay."""
    layers = linear_layers(config) if plan.changes else ()
    for chosen in config.components("model change"):
        name = chosen.entry.component.name
        if layers is None:
            raise ConfigError(f"a part of the model does not tell which layers the model change {name} has")
        for linear in layers:
            told = tell_change(chosen, linear)
            if isinstance(told, Untold):
                raise ConfigError(told.reason)
            if told is not None and not told.folds:
                raise ConfigError(f"the model change {name} cannot be folded into the weights of {linear.name}")
            if told is not None and told.keeps is not None:
                units = plan.num_attention_heads if linear.name.endswith(HEADS) else plan.intermediate_size
                yield linear.name, ceil(told.keeps * units)


def smaller_plan(plan: GPTPlan, kept: Mapping[str, int]) -> GPTPlan:
    """The plan without some heads and inner numbers. kept: how many stay, by the name of the layer that has them.

    Raises ConfigError where blocks would have different sizes, or the model has no such units.
    """
    smaller: dict[str, Any] = {}
    for name in kept:
        if not name.endswith((HEADS, INNER)):
            raise ConfigError(f"a model change leaves units of {name} out, and only {HEADS} and {INNER} have some")
    for end, key in ((HEADS, "num_attention_heads"), (INNER, "intermediate_size")):
        counts = [count for name, count in kept.items() if name.endswith(end)]
        if counts and (len(set(counts)) > 1 or len(counts) != len(plan.first_layers)):
            raise ConfigError(f"the layers would have different sizes of {key}, and a plan has one for all")
        if counts:
            smaller[key] = counts[0]
    if "num_attention_heads" in smaller:
        apart = plan.num_kv_heads in (None, plan.num_attention_heads) and plan.qk_norm != "all"
        if plan.mixers is not None or plan.layouts or not apart:
            raise ConfigError("heads can be left out of softmax attention whose heads have keys of their own")
        smaller |= {"head_dim": plan.head_width}
        smaller |= {} if plan.num_kv_heads is None else {"num_kv_heads": smaller["num_attention_heads"]}
    if "intermediate_size" in smaller and plan.feed_forwards is not None:
        raise ConfigError("inner numbers can be left out of the MLP, mlp-type regular")
    return evolve(plan, **smaller)

"""Offers the feed-forward `moe`, and reads the keys by which GPT-NeoX asks for one."""

from collections.abc import Iterator
from typing import Any

from neox_core.api import Component, Problem, hookimpl
from neox_moe.settings import MoESettings


@hookimpl
def neox_feed_forwards() -> list[Component]:
    return [
        Component(
            name="moe",
            target="neox_moe.layer:mixture",
            settings=MoESettings,
            planner="neox_moe.size:moe_size",
            summary="A mixture of experts: a router sends each token to a few of several MLPs (arXiv:2101.03961).",
        )
    ]


@hookimpl
def neox_dialects() -> list[Component]:
    return [Component("moe", "neox_moe.older:DIALECT", summary="GPT-NeoX's keys of mixtures of experts.")]


@hookimpl
def neox_check_config(config: Any) -> Iterator[Problem]:
    for chosen in config.components("feed forward"):
        if isinstance(chosen.settings, MoESettings):
            yield from _problems(config, chosen.settings)


def _problems(config: Any, moe: MoESettings) -> Iterator[Problem]:
    experts, k = moe.moe_num_experts, moe.moe_top_k
    if experts == 1:
        for key in (each.name for each in MoESettings.__attrs_attrs__ if each.name != "moe_num_experts"):
            if config.is_set(key) and config.value(key) != getattr(MoESettings(), key):
                yield config.problem("does nothing: a layer with one expert is the MLP", key, severity="note")
        return
    if k > experts:
        yield config.problem(f"{k} is more than moe-num-experts {experts}", "moe_top_k")
    if experts % moe.moe_expert_parallel_size:
        message = f"{experts} experts cannot be spread equally over {moe.moe_expert_parallel_size} ranks"
        yield config.problem(message, "moe_expert_parallel_size")
    if moe.moe_normalize_expert_weights and k == 1:
        message = "makes every weight 1 with moe-top-k: 1, so that the router would not be trained"
        yield config.problem(message, "moe_normalize_expert_weights", "remove it, or moe-top-k: 2")
    if moe.moe_train_capacity_factor is not None and moe.moe_train_capacity_factor * k >= experts:
        message = "drops nothing: each expert could take all tokens"
        yield config.problem(message, "moe_train_capacity_factor", severity="note")
    if config.is_set("use_bias_in_mlp") and config.value("use_bias_in_mlp"):
        yield config.problem("gives experts no biases, as in GPT-NeoX", "use_bias_in_mlp", severity="note")

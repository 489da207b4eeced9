"""Rules between the keys of a mixture of experts."""

from collections.abc import Iterator
from typing import Any

from neox_core.api import Problem
from neox_moe.settings import MoESettings


def problems(config: Any, moe: MoESettings) -> Iterator[Problem]:
    """Checks of several settings together."""
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

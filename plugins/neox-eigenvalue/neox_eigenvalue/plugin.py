"""Offers DeepSpeed's block `eigenvalue`: a callback that measures the curvature of each layer."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from neox_core.api import Component, Problem, hookimpl

if TYPE_CHECKING:
    from neox_eigenvalue.settings import EigenvalueBlock


@hookimpl
def neox_callbacks() -> list[Component]:
    return [
        Component(
            "eigenvalue",
            "neox_eigenvalue.measure:Eigenvalues",
            "neox_eigenvalue.settings:EigenvalueSettings",
            summary="Measures the largest eigenvalue of the Hessian of each layer (arXiv:1905.03696)",
        )
    ]


@hookimpl
def neox_check_config(config: Any) -> Iterator[Problem]:
    for chosen in config.components("callback"):
        if chosen.entry.qualified == "neox-eigenvalue:eigenvalue":
            yield from _problems(config, chosen.settings.eigenvalue)


def _problems(config: Any, block: "EigenvalueBlock") -> Iterator[Problem]:
    if block.layer_name != "layers":
        yield config.problem("names no row of layers of a model here", "eigenvalue.layer_name", "layer_name: layers")
    layers = config.value("num_layers")
    if block.layer_num is not None and layers is not None and block.layer_num > layers:
        message = f"{block.layer_num} is above num-layers, {layers}"
        yield config.problem(message, "eigenvalue.layer_num", f"layer_num: {layers}")
    whole = "contradicts eigenvalue, which needs whole layers on each rank"
    for key in ("pipe_parallel_size", "moe_expert_parallel_size"):
        if config.is_set(key) and (config.value(key) or 1) > 1:  # of a plugin that may not be there
            yield config.problem(whole, key, f"{key.replace('_', '-')}: 1")
    if config.value("sequence_parallel"):
        yield config.problem(whole, "sequence_parallel", "remove it")
    if config.is_set("zero_optimization.stage") and config.value("zero_optimization.stage") == 3:
        yield config.problem(whole, "zero_optimization.stage", "stage: 2")
    if config.value("deepspeed_activation_checkpointing"):
        message = "contradicts eigenvalue: DeepSpeed's recomputation gives no gradient of some parameters alone"
        yield config.problem(message, "deepspeed_activation_checkpointing", "remove it: torch recomputes then")
    if any(each.entry.qualified == "neox-compression:compression" for each in config.components("model change")):
        message = "contradicts eigenvalue: the curvature of rounded or masked weights is not measured"
        yield config.problem(message, "compression_training", "remove it")

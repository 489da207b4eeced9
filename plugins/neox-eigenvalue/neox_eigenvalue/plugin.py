"""Offers DeepSpeed's block `eigenvalue`: a callback that measures the curvature of each layer."""

from collections.abc import Iterator
from typing import Any

from attrs import frozen
from attrs import validators as v

from neox_core.api import Component, Problem, hookimpl, setting


@frozen
class EigenvalueBlock:
    """The largest eigenvalue of the Hessian of the loss, of each layer."""

    enabled: bool = setting(
        False,
        help="Measure the largest eigenvalue of the Hessian of each layer, the sharpness of the loss.",
        changes="output",
        origin="deepspeed",
    )
    verbose: bool = setting(
        False, help="Print the iterations and the eigenvalue of each layer.", changes="output", origin="deepspeed"
    )
    max_iter: int = setting(
        100, help="Iterations for a layer, at most.", check=v.gt(0), changes="output", origin="deepspeed"
    )
    tol: float = setting(
        0.01,
        help="The iterations end when the eigenvalue changes by less than this share of itself.",
        check=v.gt(0),
        changes="output",
        origin="deepspeed",
    )
    stability: float = setting(
        1e-6,
        help="Added to the length of a vector before the vector is divided by it.",
        check=v.ge(0),
        changes="output",
        origin="deepspeed",
    )
    gas_boundary_resolution: int = setting(
        1, help="Steps between two measurements.", unit="steps", check=v.gt(0), changes="output", origin="deepspeed"
    )
    layer_name: str = setting(
        "layers",
        help="Where the layers are in a model: layers, the only place.",
        changes="output",
        origin="deepspeed",
    )
    layer_num: int | None = setting(
        None,
        help="Layers to measure, the first ones; all if not given.",
        unit="layers",
        check=v.optional(v.gt(0)),
        changes="output",
        origin="deepspeed",
    )


@frozen
class EigenvalueSettings:
    eigenvalue: EigenvalueBlock = setting(
        EigenvalueBlock(), help="Block of the curvature of each layer.", changes="output", origin="deepspeed"
    )

    @property
    def enabled(self) -> bool:
        return self.eigenvalue.enabled


@hookimpl
def neox_callbacks() -> list[Component]:
    return [
        Component(
            "eigenvalue",
            "neox_eigenvalue.measure:Eigenvalues",
            EigenvalueSettings,
            summary="Measures the largest eigenvalue of the Hessian of each layer (arXiv:1905.03696)",
        )
    ]


@hookimpl
def neox_check_config(config: Any) -> Iterator[Problem]:
    for chosen in config.components("callback"):
        if chosen.entry.qualified == "neox-eigenvalue:eigenvalue":
            yield from _problems(config, chosen.settings.eigenvalue)


def _problems(config: Any, block: EigenvalueBlock) -> Iterator[Problem]:
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

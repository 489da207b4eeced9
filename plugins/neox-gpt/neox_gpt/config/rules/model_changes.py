"""Rules of model changes; those of a change's own settings come with it."""

from collections.abc import Iterator

from neox_core.api import Problem
from neox_core.config.schema.sections.parallelism import ParallelismSection
from neox_core.config.schema.structure import Chosen, Config
from neox_core.contracts.architecture import Untold
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.planners import sharding
from neox_core.plan.rules.rule import rule
from neox_gpt.change_contracts import ChangeSize
from neox_gpt.config.assemble import linear_layers
from neox_gpt.config.sections.model import ModelSection
from neox_gpt.config.size import tell_change


@rule("model_changes")
def model_changes_change_something(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Each model change changes a layer, which its planner tells."""
    for chosen in config.components("model change"):
        sizes = _sizes(config, chosen)
        if isinstance(sizes, Untold):
            yield config.problem(f"{sizes.reason}, and so not which layers it changes", _key(config, chosen))
        elif sizes == {}:
            name = chosen.entry.component.name
            yield config.problem(f"{name} changes no layer of this model", _key(config, chosen), "name other layers")


@rule("model_changes", "model_parallel_size")
def model_changes_can_be_split(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Tensor-parallel ranks have equal parts of what a model change splits."""
    tensor = config.section(ParallelismSection).model_parallel_size
    for chosen in config.components("model change"):
        sizes = _sizes(config, chosen)
        for layer, size in sizes.items() if isinstance(sizes, dict) else ():
            for part, dim in size.split.items():
                if size.shapes[part][dim] % tensor:
                    sides = " x ".join(map(str, size.shapes[part]))
                    message = f"{part} of {layer} is {sides}, and cannot be split over {tensor} ranks"
                    yield config.problem(message, _key(config, chosen), "model-parallel-size: 1")
                    return


@rule("model_changes", "zero_optimization.stage")
def model_changes_need_whole_weights(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """At ZeRO 3 the weights are in parts where a model change needs them."""
    stage = sharding(config).stage
    for chosen in config.components("model change") if stage == 3 else ():
        message = "a model change needs whole weights, and at ZeRO 3 a rank has parts of them"
        yield config.problem(message, _key(config, chosen), "zero_optimization.stage: 2, or lower")
        return


@rule("model_changes", "compile")
def model_changes_are_not_compiled(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A compiled layer does not see what changes from step to step."""
    if config.section(ModelSection).compile:
        for chosen in config.components("model change"):
            yield config.problem(
                "a model change is not compiled along with a layer", _key(config, chosen), "compile: false"
            )
            return


def _sizes(config: Config, chosen: Chosen) -> dict[str, ChangeSize] | Untold | None:
    """What a change adds to each layer that it changes, by the layer's name; None where the layers are not known."""
    layers = linear_layers(config)
    if layers is None:
        return None
    found: dict[str, ChangeSize] = {}
    for linear in layers:
        told = tell_change(chosen, linear)
        if isinstance(told, Untold):
            return told
        if told is not None:
            found[linear.name] = told
    return found


def _key(config: Config, chosen: Chosen) -> str:
    name = chosen.entry.component.name
    block = name.replace("-", "_")
    return block if config.is_set(block) else "model_changes"

"""Rules of the feed-forwards of the layers; those of a feed-forward's own settings come with it."""

from collections.abc import Iterator

from neox_core.api import Problem
from neox_core.config.schema.sections.parallelism import ParallelismSection
from neox_core.config.schema.structure import Config
from neox_core.contracts.architecture import Untold
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.planners import engine_planner
from neox_core.plan.rules.rule import rule
from neox_gpt.config.feed_forwards import feed_forward_of_layer
from neox_gpt.config.per_layer import check_length
from neox_gpt.config.sections.model import ModelSection
from neox_gpt.config.size import feed_forward_sizes, is_gated


@rule("mlp_type", "num_layers", "num_unique_layers")
def feed_forwards_fit_layers(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A list names the feed-forward of each layer; layers that share a block have the same."""
    model = config.section(ModelSection)
    if isinstance(model.mlp_type, str):
        return
    try:
        check_length(model.num_layers, model.mlp_type, "feed-forward")
    except ValueError as error:
        yield config.problem(str(error), "mlp_type")
        return
    shared = model.num_unique_layers not in (None, model.num_layers)
    if shared and feed_forward_of_layer(model.num_layers, model.mlp_type):
        yield config.problem("excludes num-unique-layers", "mlp_type", "name one feed-forward for all layers")


@rule("mlp_type", "engine", "optimizer.type", "model_parallel_size", "pipe_parallel_size")
def feed_forwards_can_be_spread(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Data-parallel ranks have different parts of a feed-forward where engine, optimizer and layout allow it."""
    copies, parallel = shape.data_parallel(config), config.section(ParallelismSection)
    (engine,), (optimizer,) = config.components("engine"), config.components("optimizer")
    gated = is_gated(config)
    sizes = feed_forward_sizes(config, gated=gated is True)
    for chosen, size in zip(config.components("feed forward"), sizes, strict=True):
        ranks = 1 if isinstance(size, Untold) else max(size.spread.values(), default=1)
        if ranks == 1:
            continue
        what = f"{chosen.entry.component.name} is spread over {ranks} data-parallel ranks"
        if copies % ranks:
            yield config.problem(
                f"{what}, and there are {copies}", "mlp_type", f"a multiple of {ranks}, or spread less"
            )
        if parallel.model_parallel_size * parallel.stages > 1:
            message = f"{what}, which excludes tensor and pipeline parallelism"
            yield config.problem(message, "mlp_type", "model-parallel-size: 1 and pipe-parallel-size: 1")
        if not getattr(engine_planner(config), "spreads", False):
            message = f"{what}, and {engine.entry.component.name} takes each parameter to be the same on them"
            yield config.problem(message, "engine", "engine: plain, or do not spread it")
        if optimizer.entry.component.whole_parameters:
            message = f"{optimizer.entry.component.name} needs whole parameters, and {what}"
            yield config.problem(message, "optimizer.type", "an elementwise optimizer, such as Adam")


@rule("mlp_type", "model_parallel_size")
def feed_forwards_can_be_split(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Tensor-parallel ranks have equal parts of what a feed-forward splits."""
    tensor = config.section(ParallelismSection).model_parallel_size
    model = config.section(ModelSection)
    if tensor == 1 or (model.intermediate_size or 4 * model.hidden_size) % tensor:  # another rule names the width
        return
    gated = is_gated(config)
    sizes = feed_forward_sizes(config, gated=gated is True)
    for chosen, size in zip(config.components("feed forward"), sizes, strict=True):
        name = chosen.entry.component.name
        if isinstance(size, Untold):
            yield config.problem(f"{size.reason}, and so not how it is split", "mlp_type", "model-parallel-size: 1")
        elif size.one_rank_only:
            yield config.problem(f"{name} cannot be split over ranks", "mlp_type", "model-parallel-size: 1")
        else:
            for part, dim in size.split.items():
                if size.shapes[part][dim] % tensor:
                    sides = " x ".join(map(str, size.shapes[part]))
                    message = f"{part} of {name} is {sides}, and cannot be split over {tensor} ranks"
                    yield config.problem(message, "mlp_type")

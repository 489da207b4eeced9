"""Rules of chosen components: of any kind, and of those that take part in a run by name."""

from collections.abc import Iterator
from importlib.util import find_spec

from neox_core.config.problem import Problem
from neox_core.config.schema.sections.parallelism import ParallelismSection
from neox_core.config.schema.sections.training import TrainingSection
from neox_core.config.schema.structure import Chosen, Config
from neox_core.hooks.component import load_path
from neox_core.hooks.install import how_to_get
from neox_core.hooks.kinds import KINDS
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.planners import objective_planner
from neox_core.plan.rules.rule import rule

OF_EVERY_RUN = ("torch", "deepspeed", "numpy", "safetensors")
"""Modules that ranks need. A machine without torch runs none, and checks configs without them."""


@rule(*(kind.key for kind in KINDS if kind.key and kind.used))
def components_have_libraries(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The modules that a chosen component imports are installed."""
    left_out = () if find_spec("torch") else OF_EVERY_RUN
    for chosen in (each for of_kind in config.chosen.values() for each in of_kind):
        component = chosen.entry.component
        if missing := [each for each in component.missing() if each not in left_out]:
            message = f"{component.name} needs {', '.join(missing)}, not installed"
            yield config.problem(message, _chooser(config, chosen), how_to_get(missing, chosen.entry.plugin.id))


@rule("objective", "pipe_parallel_size")
def pipeline_makes_one_pass(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A pipeline makes one pass over the model for a batch, and some objectives need several."""
    (objective,), stages = config.components("objective"), config.section(ParallelismSection).stages
    planner = objective_planner(config)
    if stages < 2 or planner is None:
        return
    passes = planner(objective.settings)
    if passes > 1:
        name = objective.entry.component.name
        message = f"{name} makes {passes} passes over the model for a batch, and a pipeline makes one"
        yield config.problem(message, "objective", "set pipe-parallel-size: 1, or choose another objective")


@rule("monitors", "callbacks", "evaluators")
def named_ones_not_switched_off(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A monitor, callback or evaluator that is named is not switched off by its own block."""
    for kind in ("monitor", "callback", "evaluator"):
        for chosen in config.components(kind):
            key = f"{chosen.entry.component.name}.enabled"
            if config.is_set(key) and not getattr(chosen.settings, "enabled", True):
                yield config.problem(f"false contradicts {kind}s, which names {chosen.entry.component.name}", key)


@rule("evaluators", "eval_interval", "eval_iters")
def evaluators_have_evaluations(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A run with evaluators has evaluations."""
    train = config.section(TrainingSection)
    if config.components("evaluator") and not (train.eval_interval and train.eval_iters):
        key = "eval_iters" if not train.eval_iters else "eval_interval"
        yield config.problem("is 0, so no evaluator measures anything", key, "set it, or remove the evaluators")


def _chooser(config: Config, chosen: Chosen) -> str:
    name, kind = chosen.entry.component.name, chosen.entry.definition
    if kind.named_by:
        return str(next(each.key for each in load_path(kind.named_by)(config.fields) if each.name == name))
    switch = f"{name}.enabled"
    return switch if config.is_set(switch) else kind.key or switch

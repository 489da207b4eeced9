"""Rules of what takes part in a run by name: monitors, callbacks, evaluators."""

from collections.abc import Iterator

from neox_core.config.problem import Problem
from neox_core.config.schema.sections.training import TrainingSection
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import rule


@rule("monitors", "callbacks", "evaluators")
def named_ones_not_switched_off(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A monitor, callback or evaluator that is named is not switched off by its own block."""
    for kind in ("monitor", "callback", "evaluator"):
        for chosen in config.components(kind):
            key = f"{chosen.entry.component.name}.enabled"
            if config.is_set(key) and not chosen.settings.enabled:
                yield config.problem(f"false contradicts {kind}s, which names {chosen.entry.component.name}", key)


@rule("evaluators", "eval_interval", "eval_iters")
def evaluators_have_evaluations(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A run with evaluators has evaluations."""
    train = config.section(TrainingSection)
    if config.components("evaluator") and not (train.eval_interval and train.eval_iters):
        key = "eval_iters" if not train.eval_iters else "eval_interval"
        yield config.problem("is 0, so no evaluator measures anything", key, "set it, or remove the evaluators")

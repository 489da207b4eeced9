"""The keys of the model, and what the host is told of it before a run starts. It imports no torch."""

from collections.abc import Iterator
from typing import Any, cast

from attrs import field, frozen
from attrs import validators as v

from neox_core.api import Problem, setting
from neox_core.config.schema.sections.data import DataSection
from neox_core.config.schema.structure import Config
from neox_core.contracts.architecture import ArchitecturePlanner, ModelSize, Shapes
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import rule
from neox_core.plan.runfile import ModelPlan, RunPlan
from neox_core.plan.source import SHAPES, of


@frozen
class Shape:
    """The size of the model."""

    num_layers: int = setting(help="Number of blocks.", check=v.ge(1))
    hidden_size: int = setting(help="Width of the residual stream.", unit="elements", check=v.ge(1))


@frozen(kw_only=True)
class Plan(ModelPlan):
    """What the training processes are told of the model."""

    hidden_size: int = field(metadata=of("hidden_size", apart=SHAPES))

    def shapes(self, rows: int, ranks: int = 1) -> dict[str, tuple[int, ...]]:
        """Of each parameter by name, as one of the ranks has it that share each layer."""
        hidden = self.hidden_size
        found: dict[str, tuple[int, ...]] = {"embedding.weight": (rows, hidden)}
        for layer in range(self.num_layers):
            at = f"layers.{layer}"
            found |= {f"{at}.norm.weight": (hidden,), f"{at}.norm.bias": (hidden,)}
            found |= {f"{at}.up": (4 * hidden // ranks, hidden), f"{at}.down": (hidden, 4 * hidden // ranks)}
        return found | {"head.norm.weight": (hidden,), "head.norm.bias": (hidden,), "head.weight": (rows, hidden)}


@rule("sequence_parallel")
def positions_are_not_split(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A block looks at all positions before its linear layers."""
    if config.value("sequence_parallel"):
        yield config.problem("this model does not split positions over ranks", "sequence_parallel", "set it to false")


class Planner(ArchitecturePlanner):
    plan_class = Plan
    rules = (positions_are_not_split,)

    def plan(self, config: Config) -> Plan:
        shape, data = config.section(Shape), config.section(DataSection)
        return Plan(
            num_layers=shape.num_layers,
            hidden_size=shape.hidden_size,
            seq_length=data.seq_length,
            padded_vocab_size=data.padded_vocab_size,
            make_vocab_size_divisible_by=data.make_vocab_size_divisible_by,
        )

    def size(self, config: Config, plan: Any) -> ModelSize:
        rows = plan.padded_vocab_size or 0
        untold = "" if rows else "the vocabulary's size comes from the tokenizer"
        return ModelSize(plan.shapes(rows), rows, gated=False, untold=untold)

    def on_fullest_rank(self, plan: RunPlan, size: ModelSize) -> Shapes:
        """Of a pipeline that is the last stage, whose head has a norm beside as many rows as the embedding."""
        model, cluster = cast("Plan", plan.model), plan.cluster
        shapes, stages = model.shapes(size.rows, cluster.tensor_parallel), cluster.pipeline_parallel
        before = {f"layers.{layer}" for layer in range(model.num_layers * (stages - 1) // stages)}
        before |= {"embedding"} if stages > 1 else set()
        return {name: shape for name, shape in shapes.items() if not name.startswith(tuple(f"{at}." for at in before))}

    def activation_bytes(self, plan: RunPlan, size: ModelSize) -> int:
        """Of each token: what a norm, two products and an activation keep in each layer, and the logits."""
        model, stages = cast("Plan", plan.model), plan.cluster.pipeline_parallel
        layers = -(-model.num_layers // stages) * min(stages, plan.batch.gradient_accumulation)
        each = layers * 12 * model.hidden_size // plan.cluster.tensor_parallel + 2 * size.rows
        return plan.precision.bytes_each * plan.batch.micro_batch * model.seq_length * each


PLANNER = Planner()

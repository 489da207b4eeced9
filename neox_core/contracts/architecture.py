"""The architecture of a model: its keys and plan on the host, and the model itself in a rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from neox_core.config.schema.structure import Config
    from neox_core.contracts.data import Tokenizer
    from neox_core.hooks.registry import Registry
    from neox_core.parallel.context import BuildContext
    from neox_core.parallel.row import BuildStage, Model
    from neox_core.plan.rules.rule import Rule
    from neox_core.plan.runfile import ModelPlan, RunPlan

Shapes = Mapping[str, tuple[int, ...]]


@frozen
class ModelSize:
    """The parameters of a planned model.

    shapes: of every parameter, by name; a layer that is passed through twice counts once.
    rows: of the embedding. gated: whether the first projection of the MLP is twice as wide. untold: why `rows` is 0,
    not known before a start.
    """

    shapes: Shapes
    rows: int
    gated: bool
    untold: str = ""

    @property
    def num_parameters(self) -> int:
        return sum(map(prod, self.shapes.values()))

    def in_words(self) -> str:
        """The number of parameters."""
        count = self.num_parameters
        short = f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.2f} M" if count >= 1e5 else f"{count:,}"
        return f"{short} parameters" + (f" beside the vocabulary's: {self.untold}" if self.untold else "")


@frozen
class Untold:
    """Why something is not known before a start, as a sentence."""

    reason: str


@frozen
class Named:
    """A component that the keys of an architecture choose. used: False: its settings are checked, it is not chosen."""

    name: str
    key: str
    used: bool = True


class ArchitecturePlanner(Protocol):
    """The planner of an architecture: an object, light, that the host asks before anything starts.

    plan_class: of `plan.model`, a subclass of `ModelPlan`. rules: asked where the architecture is chosen.
    switches: keys of its sections that ask for a kernel of an op, true, or for its reference, false.
    switch_notes: op -> what is said where a switch asks for a kernel of it.
    picture: the module that `neox config show --attention` runs, with `model`, `seed` and `out`; "": there is none.
    """

    plan_class: type[ModelPlan]
    rules: Sequence[Rule]
    switches: Mapping[str, str]
    switch_notes: Mapping[str, str]
    picture: str

    def components(self, kind: str, fields: Mapping[str, Any], registry: Registry) -> Sequence[Named] | None:
        """The components of a kind that other keys than the kind's own choose; None: the kind's key does.

        fields: the values of the top-level keys. registry: what is offered. Raises `config.problem.MisfitError` for a
        value that names none.
        """
        ...

    def plan(self, config: Config) -> ModelPlan:
        """The plan of a valid config, without kernels."""
        ...

    def ops(self, config: Config) -> Iterable[str]:
        """The ops that the model itself computes, beside those of its components."""
        ...

    def why_no_kernel(self, config: Config, op: str, asked: str) -> tuple[str, str] | None:
        """(message, hint) where this model has no use for a kernel of an op; None where it may have."""
        ...

    def size(self, config: Config, plan: ModelPlan) -> ModelSize | Untold:
        """The parameters of the model of a valid config; Untold where one of its parts has no planner."""
        ...

    def on_fullest_rank(self, plan: RunPlan, size: ModelSize) -> Shapes:
        """The shapes on the fullest rank: the layers of its stage, and its part of split parameters."""
        ...

    def activation_bytes(self, plan: RunPlan, size: ModelSize) -> int:
        """Bytes that the backward pass needs of the micro-batches that the fullest rank has in flight."""
        ...


class Architecture(Protocol):
    """`target(plan: ModelPlan) -> Architecture`.

    tables: the first parts of the names of parameters that are looked up by token or position, or score tokens.
    """

    tables: tuple[str, ...]

    def build(
        self,
        vocab_size: int,
        context: BuildContext,
        weights: Mapping[str, Tensor] | None = None,
        *,
        eod: int | None = None,
        recompute_by: Callable[..., Tensor] | None = None,
    ) -> Model:
        """The model, an `nn.Module` on `context.device` in `context.dtype`, its weights drawn from (seed, name).

        vocab_size: rows of the embedding. weights: by parameter name, in place of drawn ones. eod: the token that ends
        a document. recompute_by: what recomputes activations, None: torch's function. Raises PluginError for a
        component that cannot be loaded, ConfigError for numbers that make no model, CheckpointError for weights of
        another model.
        """
        ...

    def build_stage(
        self,
        plan: RunPlan,
        vocab_size: int,
        context: BuildContext,
        build: BuildStage,
        *,
        eod: int | None = None,
        recompute_by: Callable[..., Tensor] | None = None,
    ) -> nn.Module:
        """This rank's stage, as `build` cuts it from the row of layers. The others as of `build`. Collective."""
        ...

    def sample(self, model: Any, tokenizer: Tokenizer, prompt: str) -> str:
        """`prompt` and a continuation of it. model: a whole one, as `build` returns it."""
        ...

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """`x @ weight.T` as the layers of the model compute it, with which the peak FLOP/s of a CPU are measured."""
        ...

    def op_shape(self, op: str, context: BuildContext) -> tuple[int, ...]:
        """The shape of the first tensor of an op of the model, for one sample on this rank."""
        ...

    def kernel_use(self, op: str) -> Any:
        """What the model needs of a kernel of an op besides shape, dtype and device: the argument of the kernel's
        `why_not_for`. None: nothing.
        """
        ...

    def instead_of(self, op: str, device: torch.device) -> str:
        """What the model has in place of an op that a switch asks to fuse; "" where it computes the op."""
        ...

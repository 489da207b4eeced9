"""The architecture of a model: its keys and plan on the host, and the model itself in a rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from neox_core.config.problem import Problem
    from neox_core.config.schema.structure import Config
    from neox_core.contracts.data import Tokenizer
    from neox_core.hooks.registry import Registry
    from neox_core.parallel.context import BuildContext
    from neox_core.parallel.row import BuildStage, Model
    from neox_core.plan.rules.rule import Rule
    from neox_core.plan.runfile import KernelPlan, ModelPlan, RunPlan

Shapes = Mapping[str, tuple[int, ...]]


@frozen
class ModelSize:
    """The parameters of a planned model.

    shapes: of every parameter, by name; a layer that is passed through twice counts once. rows: of the embedding.
    gated: whether the first projection of the MLP is twice as wide. untold: why `rows` is 0, not known before a start.
    flops: floating-point operations of forward and backward for one token, as a rank counts them; 0: not known.
    width: elements of a token between two layers; 0: not known.
    """

    shapes: Shapes
    rows: int
    gated: bool
    untold: str = ""
    flops: int = 0
    width: int = 0

    @property
    def num_parameters(self) -> int:
        """The sum over all shapes."""
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

    plan_class: of `plan.model`, a `ModelPlan` that run.json can hold. rules: asked where the architecture is chosen.
    picture: the module that `neox config show --attention` runs, with `model`, `seed` and `out`; "": there is none.
    shares_output_layer, which any may leave out: whether `Row.outputs` of some positions of `passed` are those of these
    positions (`time+head`). A class of it may leave out what has a default here.
    """

    plan_class: type[ModelPlan]
    rules: Sequence[Rule] = ()
    picture: str = ""

    def components(self, kind: str, fields: Mapping[str, Any], registry: Registry) -> Sequence[Named] | None:
        """The components of a kind that other keys than the kind's own choose; None: the kind's key does.

        fields: the values of the top-level keys. Raises `config.problem.MisfitError` for a value that names none.
        """
        return None

    def plan(self, config: Config) -> ModelPlan:
        """The plan of a valid config, without kernels."""

    def kernels(self, config: Config, registry: Registry, device: str) -> tuple[tuple[KernelPlan, ...], list[Problem]]:
        """The kernels that the model and the optimizer of a valid config may use on a device, "cpu" or "cuda", and the
        problems and notes about what its keys ask for.
        """
        return (), []

    def size(self, config: Config, plan: ModelPlan) -> ModelSize | Untold:
        """The parameters of the model of a valid config; Untold where one of its parts has no planner."""

    def on_fullest_rank(self, plan: RunPlan, size: ModelSize) -> Shapes:
        """The shapes on the fullest rank: the layers of its stage, its part of split parameters; or a quarter more."""

    def activation_bytes(self, plan: RunPlan, size: ModelSize) -> int:
        """Bytes that the backward pass needs of the micro-batches that the fullest rank has in flight."""


class Architecture(Protocol):
    """`target(plan: ModelPlan) -> Architecture`.

    tables: the first parts of the names of parameters that are looked up by token or position, or score tokens.
    causal: no result depends on later tokens; False is said by a model of which that is not so.
    A class of it may leave out what has a default here.
    """

    tables: tuple[str, ...]
    causal: bool = True

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
        component that cannot be loaded, ConfigError for numbers that make no model, CheckpointError for other weights.
        """

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

    def sample(self, model: Any, tokenizer: Tokenizer, prompt: str) -> str:
        """`prompt` and a continuation, the same each time. model: a whole one, as of `build`, whose mode stays."""

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        """`x @ weight.T` as the layers of the model compute it, with which the peak FLOP/s of a CPU are measured."""
        return x @ weight.T

    def use_kernels(
        self,
        model: nn.Module,
        context: BuildContext,
        dtype: torch.dtype,
        record: Path | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> Sequence[str]:
        """Give `model`, a whole one or a stage, and the optimizer the planned kernels. Returns lines for people.

        dtype: of matmuls. record: a JSON file for the choices. Raises ConfigError for a kernel that is asked for by
        name and cannot run, PluginError for a fault of one. Called where the plan has kernels.
        """
        return ()

"""What a model and an engine agree on: a module whose call gives a loss, or a row of layers that a pipeline cuts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

if TYPE_CHECKING:
    from torch import Tensor, nn

    from neox_core.parallel.context import BuildContext
    from neox_core.plan.runfile import RunPlan

    Passed = tuple[Tensor, ...]
    """What one layer of a row passes on to the next."""


@frozen
class Routing:
    """The layers that see `kept` tokens of each sample in a step, counted from 0; seed: of the draw of these tokens."""

    layers: frozenset[int]
    seed: int
    kept: int

    def applies(self, layer: int, seq: int) -> bool:
        """Whether a layer sees fewer tokens than the `seq` that there are."""
        return layer in self.layers and self.kept < seq


@frozen(eq=False)
class Recompute:
    """Activation checkpointing. layers: consecutive ones that make up a segment, of which the input alone is kept.

    by: calls a function with tensors, and calls it once more in the backward pass.
    """

    layers: int
    by: Callable[..., Tensor]


@frozen(eq=False)
class RowLayer:
    """A place in a row of layers.

    kind: its name for `pipe-partition-method: type:...`, such as "TransformerLayer".
    module: the name that its module has in the whole model, such as "layers.3". Places with one name share a module:
        each stage with one of them holds it, and its gradient is the sum over all places.
    make: makes the module, whose weights are drawn later, by their names in the whole model.
    run: (module, passed, routing) -> what the next place gets. routing: of this step, None: all see all tokens.
    recomputed: whether activation checkpointing may leave out what it keeps: it then gets and returns a tuple whose
        first tensor is the residual stream, and passes the others on unchanged.
    """

    kind: str
    module: str
    make: Callable[[], nn.Module]
    run: Callable[[nn.Module, Any, Any], Any]
    recomputed: bool = False


class Documents(Protocol):
    """Which of a batch's labels count, where documents in a sample decide that."""

    @property
    def mask_loss(self) -> bool: ...

    def counted(self, tokens: Tensor) -> Tensor:
        """int64 [batch, seq] -> how many of their labels count, an int64 scalar."""
        ...

    def labels(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """The labels that count; the others become -100. All int64 [batch, seq]."""
        ...


class Model(Protocol):
    """What an engine trains as one module: an `nn.Module` whose call gives the mean loss of a micro-batch.

    draws: whether training draws random numbers from `keys`. documents: None where each label counts.
    sparse_weights: those whose gradients are sparse tensors. flops_per_token: floating-point operations of forward and
    backward, for one token of a whole sequence.
    """

    flops_per_token: int
    draws: bool
    documents: Documents | None
    sparse_weights: tuple[nn.Parameter, ...]

    def __call__(
        self, tokens: Tensor, labels: Tensor, keys: Tensor | None = None, *, routing: Routing | None = None
    ) -> Tensor:
        """tokens, labels: int64 [batch, seq]. keys: int64 [batch], of the samples, for whatever is drawn."""
        ...


class Row(Protocol):
    """A model as a row of layers. The first one gets (tokens, *keys), int64 [batch, seq] and [batch].

    layers: in order. shared: modules that no layer owns, by their names in the whole model. shared_is_trained_by_all:
    whether every stage trains them, so that their gradients are added up over the stages; else the first stage does.
    draws, documents, flops_per_token: as of `Model`.
    """

    @property
    def flops_per_token(self) -> int: ...
    @property
    def draws(self) -> bool: ...
    @property
    def documents(self) -> Documents | None: ...
    @property
    def layers(self) -> Sequence[RowLayer]: ...
    @property
    def shared(self) -> Mapping[str, nn.Module]: ...
    @property
    def shared_is_trained_by_all(self) -> bool: ...

    def loss(self, last: nn.Module, passed: Any, labels: Tensor) -> Tensor:
        """The mean loss of a micro-batch. last: the module of the last layer; passed: what that has returned;
        labels: int64 [batch, seq], -100 where none counts.
        """
        ...


class BuildStage(Protocol):
    """Of an engine: cuts a row into stages."""

    def __call__(
        self,
        plan: RunPlan,
        row: Row,
        context: BuildContext,
        draw: Callable[[nn.Module], None],
        recompute: Recompute | None,
    ) -> nn.Module:
        """This rank's stage, whose parameters have the names of the whole model. Collective.

        draw: gives the weights of a module their first values, by their names. recompute: None: keep activations.
        """
        ...

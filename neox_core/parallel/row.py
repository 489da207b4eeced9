"""The interface of model and engine: a module that makes passes, or a row of layers that a pipeline splits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

if TYPE_CHECKING:
    from torch import Tensor, nn

    from neox_core.contracts.objective import Outputs, Run
    from neox_core.parallel.context import BuildContext
    from neox_core.plan.runfile import RunPlan

    Passed = tuple[Tensor, ...]
    """What one layer of a row passes on to the next."""


@frozen
class Routing:
    """The layers, from 0, that process `kept` tokens of each sample in a step; seed: for choosing these tokens."""

    layers: frozenset[int]
    seed: int
    kept: int

    def applies(self, layer: int, seq: int) -> bool:
        """Whether a layer processes fewer than all `seq` tokens."""
        return layer in self.layers and self.kept < seq


@frozen(eq=False)
class Recompute:
    """Activation checkpointing. layers: number of consecutive layers in a segment, of which only the input is kept.

    by: calls a function with tensors, and calls it once more in the backward pass.
    """

    layers: int
    by: Callable[..., Tensor]


@frozen(eq=False)
class RowLayer:
    """One position in a row of layers.

    kind: its name for `pipe-partition-method: type:...`, such as "TransformerLayer".
    module: the name of its module in the whole model, such as "layers.3". Positions with the same name share a module:
        each stage with one of them holds it, and its gradient is the sum over all positions.
    make: builds the module, whose weights are drawn later, by their names in the whole model.
    run: (module, passed, routing) -> the input of the next position. routing: of this step; None: all tokens.
    recomputed: whether activation checkpointing may recompute it: its input and output are then a tuple whose
        first tensor is the residual stream, and it passes on unchanged what is not floating point.
    """

    kind: str
    module: str
    make: Callable[[], nn.Module]
    run: Callable[[nn.Module, Any, Any], Any]
    recomputed: bool = False


class Documents(Protocol):
    """Which labels of a batch count, where that depends on the documents in a sample."""

    def counts(self, tokens: Tensor) -> Tensor | None:
        """int64 [batch, seq] -> whether the label of each token counts, bool [batch, seq]; None, always: all do."""


class Model(Protocol):
    """A model that an engine trains as one module: an `nn.Module` whose call makes the passes of a micro-batch.

    draws: whether training draws random numbers from `keys`. documents: None where every label counts.
    sparse_weights: weights whose gradients are sparse tensors. flops_per_token: floating-point operations of forward
    and backward, for one token of a whole sequence.
    """

    flops_per_token: int
    draws: bool
    documents: Documents | None
    sparse_weights: tuple[nn.Parameter, ...]

    def __call__(
        self, compute: Callable[[Run], Tensor], keys: Tensor | None = None, *, routing: Routing | None = None
    ) -> Tensor:
        """What `compute`, called once within the module, however many passes it makes, gives: a scalar.

        A pass changes nothing and gives the same bits twice; a sample does not depend on the others. What is random
        follows from the pass and the samples' keys, int64 [batch]; it is off in evaluation. The gradient is exact.
        """


class Row(Protocol):
    """A model as a row of layers. The first one gets (tokens, *keys), int64 [batch, seq] and [batch].

    layers: in order. shared: modules that no layer owns, by their names in the whole model. shared_is_trained_by_all:
    whether every stage trains them, so that their gradients are added up over the stages; else only the first stage
    does. draws, documents, flops_per_token: as of `Model`.
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

    def outputs(self, last: nn.Module, passed: Any) -> Outputs:
        """What the pass gives. last: the module of the last layer; passed: its output."""


class BuildStage(Protocol):
    """The function of an engine that splits a row into stages."""

    def __call__(
        self,
        plan: RunPlan,
        row: Row,
        context: BuildContext,
        draw: Callable[[nn.Module], None],
        recompute: Recompute | None,
    ) -> nn.Module:
        """This rank's stage, whose parameters have the names of the whole model. Collective.

        draw: draws the initial weights of a module, by their names. recompute: None: keep activations.
        """

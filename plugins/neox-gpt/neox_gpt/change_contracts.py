"""The contract of model changes, and what their planners are asked and tell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

from attrs import Factory, field, frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neox_core.parallel.tensor import TensorParallel
    from neox_gpt.changes import LinearChange


@frozen
class LinearShape:
    """A linear layer of a block, as a model change sees it. All sizes are of the whole layer, in elements.

    * name: in the model, such as "layers.3.attention.qkv" or "layers.0.mlp.down".
    * inputs, outputs: its weight is [outputs, inputs].
    * split: which of the two tensor-parallel ranks share.
    * sections: lengths that make up the outputs, of each of which a rank has an equal part; told in ranks only.
    """

    name: str
    inputs: int
    outputs: int
    split: Literal["inputs", "outputs"]
    sections: tuple[int, ...] = Factory(lambda self: (self.outputs,), takes_self=True)


@frozen
class ChangeSize:
    """What the planner of a model change tells of one layer before a start.

    * shapes: of each parameter that the change adds to the whole layer, by name.
    * split: the dimension along which tensor parallelism splits a parameter, by name. Every rank has all of the others.
    * folds: whether `LinearChange.folded` will give a weight.
    * keeps: the share of the layer's units that an export has, rounded up, see `LinearChange.kept`; None: all.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(factory=dict)
    split: Mapping[str, int] = field(factory=dict)
    folds: bool = True
    keeps: float | None = None


class ModelChange(Protocol):
    """`target(settings) -> ModelChange`: which layers of a built model are changed, and which weights are trained.

    * `change(linear, tensor)` makes a `neox_gpt.api.LinearChange` for a layer, or None where the layer stays as it is.
      It is asked for every ColumnLinear and RowLinear of every block: attention has `qkv` and `output`, the MLP `up`
      and `down`.
    * `freezes(name)` says whether a parameter of the model is not trained. A parameter that one change freezes is
      frozen; parameters that changes add are trained. A frozen parameter has no gradient and no optimizer state.
    * `state`, a frozenset that may be left out: names of parameters that its layers write themselves, such as masks. A
      checkpoint has them; they are not trained.
    * `first_value(name, shape) -> Tensor | None`, which may be left out: the value with which a whole parameter starts,
      in place of a drawn one. It is asked for every parameter when a run starts, also when a checkpoint is then loaded.
    * `draws`: whether `LinearChange.drop` is used.
    * All of them depend on the arguments and the settings alone: every rank, and every run that resumes, has the same.

    Several changes of one layer act in the order of the config: each gets the weight and the output of the one before.

    Planner: `(linear: LinearShape, settings) -> ChangeSize | None`, which is needed. None: `change` makes None.
    """

    draws: bool

    def change(self, linear: LinearShape, tensor: TensorParallel) -> LinearChange | None: ...

    def freezes(self, name: str) -> bool: ...

"""Changes of the linear layers of a built model: the kind `model change`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor, nn

from neox_core.errors import ConfigError
from neox_core.parallel.tensor import ALONE, Cut
from neox_gpt.config.plan import ADDED
from neox_gpt.dropout import drop
from neox_gpt.linear import ColumnLinear, RowLinear

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from neox_core.parallel.groups import Groups
    from neox_core.parallel.tensor import TensorParallel
    from neox_core.plan.runfile import ComponentRef
    from neox_gpt.block import Block
    from neox_gpt.change_contracts import LinearShape, ModelChange
    from neox_gpt.config.plan import GPTPlan

_SITE = 2**20
"""Above the places of dropout that the layers themselves have."""


class LinearChange(nn.Module):
    """The change of one linear layer: base class of what `ModelChange.change` makes. Override what the change is about.

    linear: the layer. tensor: the ranks that share it. With tensor parallelism, x, y and the weight are this rank's:
    where `linear.split` is "outputs", x is whole and a rank has some columns of y; where it is "inputs", a rank has
    some columns of x, and the y of all ranks are added up afterwards, so a change of y is linear in y there.

    * A parameter of which ranks have parts is in `cuts`, as in a feed-forward; one that every rank has is used as
      `tensor.copy(parameter)`. A parameter of two or more dimensions is drawn as weights are, unless `starts_as_made`
      names it. State is in parameters: a checkpoint holds these by name, `<layer>.changes.<change>.<name>`.
    * `multiplied` names the parameters that every token is multiplied by, for the count of operations.
    * The result for a token depends on that token alone. Random numbers are those of `drop`, or follow from the step.
      Products of half-precision numbers are summed in fp32, as torch's are.
    * The gradient is that of the function, unless `straight_through` says that it is another one on purpose. A weight
      that is trained has one then too.
    * No method changes its arguments in place or waits for the device, and two calls in one step give the same bits.
    """

    cuts: Mapping[str, Cut]
    starts_as_made: ClassVar[frozenset[str]] = frozenset()
    multiplied: ClassVar[frozenset[str]] = frozenset()
    straight_through: ClassVar[bool] = False

    def __init__(self, linear: LinearShape, tensor: TensorParallel = ALONE) -> None:
        super().__init__()
        self.linear, self.tensor = linear, tensor
        self.cuts = {}
        self._samples: tuple[Tensor | None, int] = (None, 0)
        self._others: ProcessGroup | None = None

    def change_weight(self, weight: Tensor) -> Tensor:
        """What the layer multiplies by in place of `weight`, [outputs, inputs]."""
        return weight

    def change_input(self, x: Tensor) -> Tensor:
        """What the layer multiplies in place of `x`, [batch, seq, inputs]; `forward` gets that too."""
        return x

    def change_bias(self, bias: Tensor) -> Tensor:
        """What the layer adds in place of `bias`, [outputs], where it has one."""
        return bias

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """What the layer gives in place of `y`, its product with `x`, before the bias: [batch, seq, outputs]."""
        return y

    def at_step(self, step: int) -> None:
        """The step that starts, counted from 0; called before its first forward pass, also when a run resumes.

        A model that is not trained, as in `neox generate` and an export, is not told a step.
        """

    def folded(self, weight: Tensor) -> Tensor | None:
        """The whole weight with which a layer computes the same without the change, outside of training; None: there is
        none. Called on one rank without tensor parallelism.
        """
        return None

    def kept(self) -> Tensor | None:
        """Which units of the layer an export has, bool [units]; None: all. It leaves out what is zero, with the rest of
        the block that computes with it: of `attention.output` the units are heads, of the MLP's `up` the numbers that
        it gives to `down`. Called as `folded` is.
        """
        return None

    def drop(self, x: Tensor, p: float) -> Tensor:
        """`x`, the input of the layer, with dropout of probability p in training.

        Which elements are dropped follows from the samples, so every layout of ranks drops the same.
        """
        keys, layer = self._samples
        first = self.tensor.first(self.linear.inputs) if self.linear.split == "inputs" else 0
        place = self.linear.name.partition(".")[2].partition(".")[2]
        return drop(x, p, keys, _SITE + crc32(f"{layer}/{place}".encode()), first_column=first)

    def highest(self, x: Tensor) -> Tensor:
        """The maximum of `x`, element by element, over the ranks that see other samples, outside of autograd.

        A collective: in every pass of training, or in none.
        """
        if self._others is not None:
            x = x.contiguous()
            dist.all_reduce(x, dist.ReduceOp.MAX, group=self._others)
        return x

    def total(self, x: Tensor) -> Tensor:
        """The sum of `x` over the ranks that see other samples, outside of autograd. A collective, as `highest`; it may
        be called in the backward pass of a weight.
        """
        if self._others is not None:
            x = x.contiguous()
            dist.all_reduce(x, dist.ReduceOp.SUM, group=self._others)
        return x

    @property
    def speaks(self) -> bool:
        """Whether this rank is the one to tell people of this layer."""
        return self.tensor.rank == 0 and (self._others is None or self._others.rank() == 0)

    def for_samples(self, keys: Tensor | None, layer: int) -> None:
        """What `drop` needs of the pass that starts. keys: of the samples, None outside of training."""
        self._samples = (keys, layer)


class Changes:
    """The model changes of a plan, in their order. Raises PluginError for one that breaks its contract.

    groups: those of a rank; None: it is alone.
    """

    def __init__(self, plan: GPTPlan, groups: Groups | None = None) -> None:
        self._others = groups.data if groups is not None and groups.data_size > 1 else None
        self._tried: set[str] = set()
        self._made: list[tuple[ComponentRef, ModelChange]] = [(each, each.make()) for each in plan.changes or ()]
        for reference, change in self._made:
            if not isinstance(getattr(change, "draws", None), bool):
                raise reference.fault("has no truth value `draws`")
        self.draws = any(change.draws for _, change in self._made)
        self.some = bool(self._made)

    def attach(self, block: Block, name: str) -> Block:
        """Change the layers of a block. name: of the block in the model."""
        if self._made:
            for inner, layer in list(block.named_modules()):
                if isinstance(layer, ColumnLinear | RowLinear):
                    for reference, change in self._of(layer.shape(f"{name}.{inner}"), layer.tensor):
                        self._probe(reference, change, layer)
                        layer.take_change(reference.name, change)
            block.find_changes()
        return block

    def require_effect(self, blocks: Iterable[Block], names: Iterable[str]) -> None:
        """Raises PluginError for a change that does nothing: it adds nothing to any of all `blocks`, the whole ones of
        the model, overrides no method of `LinearChange`, has no first values, and freezes no parameter of `names`.
        """
        made = [each for block in blocks for each in block.modules() if isinstance(each, nn.ModuleDict)]
        names = list(names)
        for reference, change in self._made:
            own = [each[reference.name] for each in made if reference.name in each]
            if any(_acts(each) for each in own) or hasattr(change, "first_value"):
                continue
            with reference.blamed():
                freezes = any(change.freezes(name) for name in names)
            if not freezes:
                what = f"makes a {type(own[0]).__name__} that does nothing" if own else "changes no layer of this model"
                raise reference.fault(f"{what}, freezes nothing and has no first values: it would have no effect")

    def freeze(self, model: nn.Module) -> None:
        """Train only what is not frozen. Raises ConfigError where nothing of `model`, whole or a stage, is left."""
        if not self._made:
            return
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(self.trains(name))
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ConfigError(
                "the model changes leave nothing to train in this pipeline stage",
                hint="let them change layers of every stage, or use pipe-parallel-size: 1",
            )

    def trains(self, name: str) -> bool:
        """Whether a parameter is trained, by its name."""
        _, _, own = name.partition(ADDED)
        if own:
            added_by, _, inner = own.partition(".")
            return not any(inner in state_of(each) for reference, each in self._made if reference.name == added_by)
        for reference, change in self._made:
            with reference.blamed():
                if change.freezes(name):
                    return False
        return True

    def start(self, model: nn.Module) -> None:
        """Give parameters of `model`, whole or a stage, the first values that changes have for them.

        Raises PluginError for a value of another shape.
        """
        for reference, change in self._made:
            give: Callable[[str, tuple[int, ...]], Tensor | None] = getattr(change, "first_value", _drawn)
            for name, parameter, cut in () if give is _drawn else named_parts(model):
                shape = tuple(parameter.shape) if cut is None else cut.whole_shape(tuple(parameter.shape))
                with reference.blamed():
                    value = give(name, shape)
                if value is None:
                    continue
                if tuple(value.shape) != shape:
                    raise reference.fault(f"gives {name} of shape {list(shape)} a first value {describe(value)}")
                with torch.no_grad():
                    parameter.copy_(value if cut is None else cut.of(value))

    def fold(self, layer: ColumnLinear | RowLinear, name: str, read: Callable[[str], Tensor]) -> Tensor:
        """The weight of a whole layer with its changes folded in. read: gives a parameter of the model by its name.

        Raises ConfigError for a change that cannot be folded in.
        """
        return self._fold(layer, name, "weight", read)

    def fold_bias(self, layer: ColumnLinear | RowLinear, name: str, read: Callable[[str], Tensor]) -> Tensor:
        """The same of its bias."""
        return self._fold(layer, name, "bias", read)

    def kept(self, layer: ColumnLinear | RowLinear, name: str, read: Callable[[str], Tensor]) -> Tensor | None:
        """Which units of a whole layer an export has, bool [units]; None: all."""
        for reference, change in self._with_numbers(layer, name, read):
            with reference.blamed():
                found = change.kept()
            if found is not None:
                return found
        return None

    def _fold(self, layer: ColumnLinear | RowLinear, name: str, part: str, read: Callable[[str], Tensor]) -> Tensor:
        weight = read(f"{name}.{part}")
        for reference, change in self._with_numbers(layer, name, read):
            with reference.blamed():
                found = change.folded(weight) if part == "weight" else change.change_bias(weight)
            if found is None:
                message = f"the model change {reference.name} cannot be folded into the weights of {name}"
                raise ConfigError(
                    message, hint="export a checkpoint of a run without what it does to the inputs of layers"
                )
            weight = found.detach().to(weight.dtype)
        return weight

    def _with_numbers(
        self, layer: ColumnLinear | RowLinear, name: str, read: Callable[[str], Tensor]
    ) -> Iterator[tuple[ComponentRef, LinearChange]]:
        """The changes of a whole layer, outside of training."""
        for reference, change in self._of(layer.shape(name), ALONE):
            at = f"{name}{ADDED}{reference.name}"
            own = {inner: read(f"{at}.{inner}") for inner, _ in change.named_parameters()}
            change.load_state_dict(own, assign=True)
            yield reference, change.eval()

    def _of(self, linear: LinearShape, tensor: TensorParallel) -> Iterator[tuple[ComponentRef, LinearChange]]:
        for reference, change in self._made:
            with reference.blamed():
                made = change.change(linear, tensor)
            if made is None:
                continue
            if not isinstance(made, LinearChange):
                raise reference.fault(f"makes a {type(made).__name__} for {linear.name}, not a LinearChange")
            if any(True for _ in made.buffers()):
                raise reference.fault("has a buffer, and state of a change is in parameters")
            made._others = self._others  # noqa: SLF001 of the base class, which is this module's
            yield reference, made

    def _probe(self, reference: ComponentRef, change: LinearChange, layer: ColumnLinear | RowLinear) -> None:
        """Try the first layer of each change on a token. Raises PluginError where it gives something else."""
        if reference.name in self._tried or layer.weight.is_meta:
            return
        self._tried.add(reference.name)
        outputs, inputs = layer.weight.shape
        x, y = torch.zeros(1, 1, inputs), torch.zeros(1, 1, outputs)
        with torch.no_grad(), torch.random.fork_rng(devices=[]), reference.blamed():
            found = change(x, y)
        if not isinstance(found, Tensor) or (found.shape, found.dtype) != (y.shape, y.dtype):
            raise reference.fault(f"of {describe(y)} it gives {describe(found)}, not the same")


def _acts(change: nn.Module) -> bool:
    """Whether the change of a layer adds parameters, or has a method of its own."""
    own = type(change)
    return any(True for _ in change.parameters()) or any(
        getattr(own, name) is not getattr(LinearChange, name)
        for name in ("change_weight", "change_input", "change_bias", "forward", "at_step", "folded", "kept")
    )


def _drawn(name: str, shape: tuple[int, ...]) -> None:
    """What a change without first values says."""


def named_parts(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, Cut | None]]:
    """Each parameter of a rank's model once, by name, and how it is cut from the whole; None: it is whole."""
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        cuts: Mapping[str, Cut] = getattr(module, "cuts", {})
        for own, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield f"{prefix}.{own}" if prefix else own, parameter, cuts.get(own)


def state_of(change: ModelChange) -> frozenset[str]:
    """The names of the parameters that a change writes itself, and that are not trained."""
    return getattr(change, "state", frozenset())


def describe(value: object) -> str:
    """A value for messages: type and shape of a tensor, else its class."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"

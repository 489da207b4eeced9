"""What a layer computes with: rounded weights and inputs, and weights of which a part is zero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from neox_gpt.api import LinearChange
from torch import Tensor, nn

from neox_compression.plan import SNIP, SNIP_NAMES, groups_of, prunings
from neox_compression.pruning.masks import Pruned
from neox_compression.pruning.snip import Snip, SnipPruned
from neox_compression.quantization.inputs import RoundedInput
from neox_compression.quantization.weights import RoundedWeight
from neox_compression.teacher.reduction import Reduced

if TYPE_CHECKING:
    from neox_gpt.api import LinearShape

    from neox_compression.settings import CompressionSettings
    from neox_core.parallel.tensor import Cut, TensorParallel

MASKS = frozenset({"sparse_mask", "row_mask", *SNIP_NAMES})
SCORES = frozenset({"sparse_scores", "row_scores", "head_scores"})


class Compression:
    """Compresses the layers of the groups of each enabled technique."""

    draws = False
    state = frozenset({"range", "seen"}) | MASKS

    def __init__(self, settings: CompressionSettings) -> None:
        self._settings = settings
        self._snip = Snip(settings.compression_training.sparse_pruning.shared_parameters)
        reduction = settings.compression_training.layer_reduction
        self._reduced = Reduced(reduction) if reduction.enabled else None

    def change(self, linear: LinearShape, tensor: TensorParallel) -> Compressed | None:
        """The techniques of a layer; None where no group names it."""
        groups = groups_of(linear.name, self._settings)
        if not groups and self._reduced is None:
            return None
        return Compressed(linear, tensor, groups, self._settings, self._snip)

    def freezes(self, name: str) -> bool:
        return False

    def first_value(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        """A weight of the teacher, where a student has fewer layers; None: it is drawn."""
        return None if self._reduced is None else self._reduced.first_value(name, shape)


class Compressed(LinearChange):
    """One layer with its techniques. Without a step, as in an export, all of them act as at their end."""

    straight_through: ClassVar[bool] = True
    starts_as_made: ClassVar[frozenset[str]] = MASKS
    no_weight_decay: ClassVar[frozenset[str]] = SCORES

    def __init__(
        self,
        linear: LinearShape,
        tensor: TensorParallel,
        groups: dict[str, Any],
        settings: CompressionSettings,
        snip: Snip,
    ) -> None:
        super().__init__(linear, tensor)
        block = settings.compression_training
        weights, inputs = groups.get("weight_quantization"), groups.get("activation_quantization")
        self._weights = self._inputs = None
        if weights is not None:
            self._weights = RoundedWeight(self, weights.params, block.weight_quantization.shared_parameters)
        if inputs is not None:
            self._inputs = RoundedInput(self, inputs.params, block.activation_quantization.shared_parameters)
        dim, sections = (1, (linear.inputs,)) if linear.split == "inputs" else (0, linear.sections)
        self._cut = tensor.cut(dim, sections)
        self.step: int | None = None
        if self._inputs is not None and self._inputs.static:
            self.range = nn.Parameter(torch.zeros(2), requires_grad=False)
            self.seen = nn.Parameter(torch.zeros(2), requires_grad=False)
        self.cuts = {}
        own = prunings(linear, groups, settings)
        for each in own:
            shape = list(each.shape)
            if each.split is not None:
                shape[each.split] = tensor.share(shape[each.split])
                whole = (each.shape[each.split],) if each.what == "head" else sections
                self.cuts[each.name] = tensor.cut(each.split, whole)
            first = torch.empty(shape) if each.learned else torch.ones(shape)
            self.register_parameter(each.name, nn.Parameter(first, requires_grad=each.learned))
        self._pruned: list[Pruned | SnipPruned] = [Pruned(self, each) for each in own]
        if SNIP in groups:
            shape = [linear.outputs, linear.inputs]
            shape[self._cut.dim] = tensor.share(shape[self._cut.dim])
            for name in SNIP_NAMES:
                first = torch.ones(shape) if name == "snip_mask" else torch.zeros(shape)
                self.register_parameter(name, nn.Parameter(first, requires_grad=False))
                self.cuts[name] = self._cut
            self._pruned.append(SnipPruned(self, snip))

    def at_step(self, step: int) -> None:
        if step != self.step:  # a step may be repeated
            for each in (self._weights, self._inputs, *self._pruned):
                if each is not None:
                    each.at_step(step)
        self.step = step

    def kept(self) -> Tensor | None:
        found = (each.kept() for each in self._pruned if isinstance(each, Pruned))
        return next((each for each in found if each is not None), None)

    def change_weight(self, weight: Tensor) -> Tensor:
        found = weight if self._weights is None else self._weights.rounded(weight)
        for each in self._pruned:
            found = each.pruned(found, weight)
        return found

    def change_input(self, x: Tensor) -> Tensor:
        return x if self._inputs is None else self._inputs.rounded(x)

    def change_bias(self, bias: Tensor) -> Tensor:
        for each in self._pruned:
            mask = each.bias_mask()
            bias = bias if mask is None else bias * mask.to(bias.dtype)
        return bias

    def folded(self, weight: Tensor) -> Tensor | None:
        return None if self._inputs is not None else self.change_weight(weight).detach()

    def whole(self, part: Tensor) -> Tensor:
        """The whole of what this rank has a part of as of the weight, without a gradient. Collective."""
        return self._joined(part, self._cut)

    def part(self, whole: Tensor) -> Tensor:
        """This rank's part of a whole weight."""
        return whole if self.tensor.size == 1 else self._cut.of(whole).contiguous()

    def shared(self, name: str) -> Tensor:
        """A parameter as the product with this rank's weight uses it."""
        parameter = self.get_parameter(name)
        return parameter if name in self.cuts or not parameter.requires_grad else self.tensor.copy(parameter)

    def whole_of(self, name: str, part: Tensor) -> Tensor:
        """The whole of this rank's part of a parameter, without a gradient. Collective where it is split."""
        return self._joined(part, self.cuts[name]) if name in self.cuts else part

    def own_part(self, name: str, whole: Tensor) -> Tensor:
        """This rank's part of what has the whole shape of a parameter."""
        cut = self.cuts.get(name)
        return whole if cut is None or self.tensor.size == 1 else cut.of(whole).contiguous()

    def _joined(self, part: Tensor, cut: Cut) -> Tensor:
        if self.tensor.size == 1:
            return part.detach()
        parts = self.tensor.gather_last(part.reshape(-1)).chunk(self.tensor.size)
        return cut.join([each.view(part.shape) for each in parts])

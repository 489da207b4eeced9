"""The callback: after some steps it finds the largest eigenvalue of the Hessian of each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from neox_core.parallel.tensor import cut_of
from neox_core.terminal import echo
from neox_eigenvalue.power import Found, Vector, difference_product, largest_eigenvalue

if TYPE_CHECKING:
    from neox_core.contracts.engine import Engine
    from neox_core.contracts.events import Where
    from neox_core.contracts.host import RunInfo
    from neox_core.parallel.context import BuildContext
    from neox_eigenvalue.settings import EigenvalueSettings


class Eigenvalues:
    """Measured on the last micro-batches of a step on all data-parallel ranks, with the weights after the step.

    The loss is without dropout; it is computed in float64 on a CPU, elsewhere in float32. The weights of the run are
    not touched, and every rank gets the same numbers.
    """

    where: ClassVar[Where] = "collective"

    def __init__(self, run: RunInfo, context: BuildContext, settings: EigenvalueSettings, engine: Engine) -> None:
        self._block, self._engine, self._context = settings.eigenvalue, engine, context
        self._found: dict[str, float] = {}

    def step(self, step: int) -> None:
        """Waits for the device in the steps that measure, once in each iteration."""
        self._found = {}
        if step % self._block.gas_boundary_resolution == 0:
            self._found = {f"eigenvalue_{layer}": found.value for layer, found in enumerate(self._measure(step))}

    def measured(self, step: int) -> dict[str, float]:
        return self._found

    def _measure(self, step: int) -> list[Found]:
        model: Any = self._engine.model
        layers = list(getattr(model, self._block.layer_name))[: self._block.layer_num]
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        dtype = torch.float64 if self._context.device.type == "cpu" else torch.float32
        weights = {
            name: each.detach().to(dtype) if each.is_floating_point() else each.detach()
            for name, each in model.named_parameters()
        }
        found = []
        model.eval()
        try:
            with torch.compiler.set_stance("force_eager"), torch.enable_grad():
                for place, layer in enumerate(layers):
                    mine = [names[id(each)] for each in layer.parameters() if each.requires_grad]
                    found.append(self._of_layer(mine, weights, place))
                    self._tell(step, place, found[-1])
        finally:
            model.train()
        return found

    def _of_layer(self, names: list[str], weights: dict[str, Tensor], place: int) -> Found:
        gradients = _Gradients(self._engine, names)

        def gradient(point: Vector) -> Vector:
            leaves = [each.requires_grad_() for each in point]
            given = {**weights, **dict(zip(names, leaves, strict=True))}
            renamed = {f"model.{name}": each for name, each in given.items()}
            return self._mean(torch.func.functional_call(gradients, renamed, (leaves,)))

        point = [weights[name].clone() for name in names]
        block = self._block
        return largest_eigenvalue(
            difference_product(gradient, point),
            [self._drawn(name, weights[name], place * len(weights) + each) for each, name in enumerate(names)],
            lambda one, other: self._dot(names, one, other),
            tol=block.tol,
            max_iter=block.max_iter,
            stability=block.stability,
        )

    def _mean(self, vector: Vector) -> Vector:
        """Over the data-parallel ranks."""
        groups = self._context.groups
        if groups.data_size == 1:
            return vector
        flat = torch.cat([each.reshape(-1) for each in vector])
        dist.all_reduce(flat, group=groups.data)
        parts = (flat / groups.data_size).split([each.numel() for each in vector])
        return [part.view(each.shape) for part, each in zip(parts, vector, strict=True)]

    def _dot(self, names: list[str], one: Vector, other: Vector) -> Tensor:
        """Over the tensor-parallel ranks: what several of them have counts once."""
        tensor = self._context.groups.tensor
        pairs = zip(names, one, other, strict=True)
        counted = [(a * b).sum() for name, a, b in pairs if tensor.size == 1 or self._engine.stores(name)]
        total = torch.stack(counted).sum() if counted else one[0].new_zeros(())
        return total if tensor.size == 1 else tensor.add_up(total[None])[0]

    def _drawn(self, name: str, like: Tensor, number: int) -> Tensor:
        """Numbers of a normal distribution, the same on all ranks that have the same part of a parameter."""
        parameter = self._engine.model.get_parameter(name)
        rank = self._context.groups.tensor.rank if cut_of(parameter) is not None else 0
        tensor = self._context.groups.tensor
        draw = torch.Generator().manual_seed(self._context.seed + number * tensor.size + rank)
        return torch.randn(like.shape, generator=draw, dtype=like.dtype).to(like.device)

    def _tell(self, step: int, place: int, found: Found) -> None:
        first = not dist.is_initialized() or dist.get_rank() == 0
        if self._block.verbose and first:
            echo(f"layer {place}: eigenvalue {found.value:.6g} after {found.iterations} iterations at step {step}")


class _Gradients(nn.Module):
    """The gradient, as a module, so that what recomputes in the backward pass sees the weights that are given too."""

    def __init__(self, engine: Any, names: list[str]) -> None:
        super().__init__()
        self.model = engine.model
        self._loss, self._names = engine.loss_of, names

    def forward(self, leaves: Vector) -> Vector:
        return list(torch.autograd.grad(self._loss(self.model), leaves))

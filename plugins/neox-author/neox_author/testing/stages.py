"""A row of layers cut into stages that run in one process, one after the other, as a pipeline's do on its ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from neox_author.testing.clauses import hold
from neox_core.parallel.tensor import mark_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neox_core.contracts.objective import Outputs
    from neox_core.parallel.context import BuildContext
    from neox_core.parallel.row import Recompute, Row, RowLayer
    from neox_core.plan.runfile import RunPlan


class Stage(nn.Module):
    """The layers of one stage, under the names that their modules have in the whole model."""

    def __init__(self, row: Row, pipe_rank: int, pipe_size: int) -> None:
        super().__init__()
        self.row, first, last = row, *_cut(row.layers, pipe_rank, pipe_size)
        self.own = tuple(row.layers[first:last])
        for layer in self.own:
            self._put(layer.module, layer.make)
        if pipe_rank == 0 or row.shared_is_trained_by_all:
            for name, module in row.shared.items():
                self.add_module(name, module)

    def _put(self, path: str, make: Callable[[], nn.Module]) -> None:
        at: nn.Module = self
        *parents, name = path.split(".")
        for parent in parents:
            if not hasattr(at, parent):
                at.add_module(parent, nn.Module())
            at = getattr(at, parent)
        if not hasattr(at, name):
            at.add_module(name, make())

    def forward(self, passed: Any) -> Any:
        for layer in self.own:
            given, passed = passed, layer.run(self.get_submodule(layer.module), passed, None)
            if layer.recomputed:
                kept = isinstance(passed, tuple) and len(passed) == len(given) and passed[0].is_floating_point()
                hold(kept, f"a `recomputed` layer gives a tuple as long as what it gets; {layer.module} does not")
                whole = [(one, other) for one, other in zip(given, passed, strict=True) if not one.is_floating_point()]
                same = all(torch.equal(one, other) for one, other in whole)
                hold(same, f"a `recomputed` layer passes on what is not floating point; {layer.module} does not")
        return passed

    def outputs(self, passed: Any) -> Outputs:
        """Of the last stage, from what its layers give."""
        return self.row.outputs(self.get_submodule(self.own[-1].module), passed)


def build_stage(
    plan: RunPlan, row: Row, context: BuildContext, draw: Callable[[nn.Module], None], recompute: Recompute | None
) -> Stage:
    """See `neox_core.parallel.row.BuildStage`."""
    stage = Stage(row, context.groups.pipe_rank, context.groups.pipe_size)
    draw(stage)
    stage.to(device=context.device, dtype=context.dtype)
    mark_parameters(stage, context.groups.tensor)
    return stage


def run_stages(stages: Sequence[Stage], given: tuple[Tensor, ...], loss: Callable[[Outputs], Tensor]) -> Tensor:
    """The loss that the last stage gives, after a backward pass through all of them; the gradients are in their
    parameters.
    """
    sent: list[Any] = []
    received: list[Any] = [given]
    for stage in stages[:-1]:
        sent.append(stage(received[-1]))
        tensors = _flat(sent[-1])
        hold(
            all(isinstance(each, Tensor) for each in tensors), "what a layer passes on is a tensor, or a tuple of them"
        )
        let_go = tuple(each.detach().requires_grad_(each.requires_grad) for each in tensors)
        received.append(let_go if isinstance(sent[-1], tuple) else let_go[0])
    total = loss(stages[-1].outputs(stages[-1](received[-1])))
    total.backward()
    for left, right in zip(sent[::-1], received[:0:-1], strict=True):
        pairs = [(one, other.grad) for one, other in zip(_flat(left), _flat(right), strict=True)]
        own = [(one, gradient) for one, gradient in pairs if one.requires_grad and gradient is not None]
        torch.autograd.backward([one for one, _ in own], [gradient for _, gradient in own])
    return total.detach()


def _flat(passed: Any) -> tuple[Any, ...]:
    return passed if isinstance(passed, tuple) else (passed,)


def _cut(layers: Sequence[RowLayer], rank: int, size: int) -> tuple[int, int]:
    """[first, last) of the layers of a stage: each has equally many of those that may be recomputed."""
    blocks = [place for place, each in enumerate(layers) if each.recomputed] or list(range(len(layers)))
    starts = [0, *(blocks[len(blocks) * each // size] for each in range(1, size)), len(layers)]
    return starts[rank], starts[rank + 1]

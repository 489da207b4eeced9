"""The model. A training process imports it when the config chooses the architecture.

It is a row of layers, so that a pipeline can cut it: an embedding, blocks, a head. In a block each token sees the mean
of the tokens up to it, then two linear layers whose weights the ranks of `model-parallel-size` share.
"""

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from neox_core.contracts import architecture, objective
from neox_core.contracts.data import Tokenizer
from neox_core.errors import CheckpointError
from neox_core.parallel.context import BuildContext
from neox_core.parallel.row import BuildStage, RowLayer
from neox_core.parallel.tensor import Cut, TensorParallel, mark_parameters
from neox_core.plan.runfile import RunPlan

from .plan import Plan


class Norm(nn.LayerNorm):
    no_weight_decay = frozenset({"weight", "bias"})


class Embedding(nn.Module):
    def __init__(self, rows: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, hidden))

    def forward(self, tokens: Tensor) -> Tensor:  # [batch, seq] -> [batch, seq, hidden]
        return functional.embedding(tokens, self.weight)


class Block(nn.Module):
    def __init__(self, hidden: int, tensor: TensorParallel) -> None:
        super().__init__()
        self.tensor, inner = tensor, 4 * hidden
        self.norm = Norm(hidden)
        self.up = nn.Parameter(torch.empty(tensor.share(inner), hidden))
        self.down = nn.Parameter(torch.empty(hidden, tensor.share(inner)))
        self.cuts = {"up": tensor.cut(0, (inner,)), "down": tensor.cut(1, (inner,))}

    def forward(self, x: Tensor) -> Tensor:  # [batch, seq, hidden] -> the same
        seen = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=x.dtype)
        mean = x.cumsum(1) / seen[:, None]
        inner = functional.gelu(self.tensor.enter(self.norm(x + mean)) @ self.up.T)
        return x + self.tensor.leave(inner @ self.down.T)


class Head(nn.Module):
    def __init__(self, rows: int, hidden: int) -> None:
        super().__init__()
        self.norm = Norm(hidden)
        self.weight = nn.Parameter(torch.empty(rows, hidden))

    def forward(self, x: Tensor) -> Tensor:  # [batch, seq, hidden] -> [batch, seq, rows]
        return self.norm(x) @ self.weight.T


class Outputs:
    """What a pass gives, from all logits; see `neox_core.contracts.objective.Outputs`."""

    auxiliary_losses: Mapping[str, Tensor] = {}
    metrics: Mapping[str, Tensor] = {}

    def __init__(self, logits: Tensor) -> None:  # [batch, seq, rows]
        self.all = logits

    def _wide(self) -> Tensor:
        return self.all if self.all.dtype == torch.float64 else self.all.float()

    def logits(self) -> Tensor:
        return self.all

    def scores(self, labels: Tensor) -> objective.Scores:
        log = self._wide().log_softmax(-1)
        own = log.gather(-1, labels.clamp(min=0)[..., None])[..., 0].masked_fill(labels == objective.IGNORED, 0)
        return objective.Scores(own, log.mean(-1), self._wide().logsumexp(-1))

    def cross_entropy(self, labels: Tensor) -> Tensor:
        return -self.scores(labels).log_prob.sum() / (labels != objective.IGNORED).sum().clamp(min=1)


class Row:
    """The layers in order, which the whole model goes through as well; see `neox_core.parallel.row.Row`."""

    draws, documents, shared_is_trained_by_all = False, None, False
    shared: Mapping[str, nn.Module] = {}

    def __init__(self, plan: Plan, rows: int, tensor: TensorParallel) -> None:
        hidden = plan.hidden_size
        weights = {name: shape for name, shape in plan.shapes(rows).items() if name != "embedding.weight"}
        self.flops_per_token = 6 * sum(prod(shape) for shape in weights.values() if len(shape) == 2)
        self.layers = (
            RowLayer("Embedding", "embedding", partial(Embedding, rows, hidden), _embed),
            *(
                RowLayer("TransformerLayer", f"layers.{at}", partial(Block, hidden, tensor), _run, recomputed=True)
                for at in range(plan.num_layers)
            ),
            RowLayer("Head", "head", partial(Head, rows, hidden), lambda head, passed, routing: head(passed[0])),
        )

    def outputs(self, last: nn.Module, passed: Any) -> objective.Outputs:
        return Outputs(passed)


def _embed(embedding: nn.Module, passed: Any, routing: Any) -> tuple[Tensor, ...]:
    return (embedding(passed[0]),)


def _run(block: nn.Module, passed: Any, routing: Any) -> tuple[Tensor, ...]:
    return (block(passed[0]),)


class Model(nn.Module):
    """The whole row as one module; see `neox_core.parallel.row.Model`."""

    draws, documents, sparse_weights = False, None, ()

    def __init__(self, row: Row) -> None:
        super().__init__()
        first, *blocks, last = row.layers
        self.row, self.flops_per_token = row, row.flops_per_token
        self.embedding, self.head = first.make(), last.make()
        self.layers = nn.ModuleList(each.make() for each in blocks)

    def forward(
        self, compute: Callable[[objective.Run], Tensor], keys: Tensor | None = None, *, routing: Any = None
    ) -> Tensor:
        return compute(self.outputs)

    def outputs(self, tokens: Tensor) -> objective.Outputs:
        passed: Any = (tokens,)
        for layer in self.row.layers:
            passed = layer.run(self.get_submodule(layer.module), passed, None)
        return self.row.outputs(self.head, passed)


def draw(seed: int, module: nn.Module) -> None:
    """Give each matrix its first numbers: they follow from (seed, name), whatever ranks hold it."""
    for prefix, inner in module.named_modules():
        for name, parameter in inner.named_parameters(prefix, recurse=False):
            if parameter.dim() > 1:
                cut: Cut | None = getattr(inner, "cuts", {}).get(name.rpartition(".")[2])
                digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
                random = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
                size = tuple(parameter.shape) if cut is None else cut.whole_shape(tuple(parameter.shape))
                whole = torch.empty(size).normal_(0, 0.02, generator=random)
                parameter.data.copy_(whole if cut is None else cut.of(whole))


class Architecture(architecture.Architecture):
    tables = ("embedding", "head")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def build(
        self,
        vocab_size: int,
        context: BuildContext,
        weights: Mapping[str, Tensor] | None = None,
        *,
        eod: int | None = None,
        recompute_by: Callable[..., Tensor] | None = None,
    ) -> Model:
        model = Model(Row(self.plan, vocab_size, context.groups.tensor))
        if weights is None:
            draw(context.seed, model)
        else:
            try:
                model.load_state_dict(dict(weights))
            except RuntimeError as error:
                raise CheckpointError(f"weights of another model: {error}") from error
        mark_parameters(model, context.groups.tensor)
        model.to(context.device, context.dtype)
        return model

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
        row = Row(self.plan, vocab_size, context.groups.tensor)
        return build(plan, row, context, partial(draw, context.seed), None)

    @torch.no_grad()
    def sample(self, model: Any, tokenizer: Tokenizer, prompt: str) -> str:
        ids = tokenizer.encode(prompt) or [tokenizer.eod]
        for _ in range(self.plan.seq_length - len(ids)):
            logits = model.outputs(torch.tensor([ids])).logits()
            ids.append(int(logits[0, -1, : tokenizer.vocab_size].argmax()))
        return tokenizer.decode(ids)

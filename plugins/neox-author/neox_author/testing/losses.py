"""The check of the loss half of an objective, against a small model of which all logits are there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from neox_author.testing.clauses import has, hold, is_word, not_applicable
from neox_author.testing.outputs import WholeLogits
from neox_author.testing.waits import NoWait
from neox_core.contracts.objective import Batch, Loss
from neox_core.parallel.sample_keys import sample_keys

if TYPE_CHECKING:
    from neox_core.contracts.objective import Objective

Outputs = Callable[[Tensor], Any]
ROWS, WIDTH = 4, 8
END = 0
"""The token after which no label counts."""


class _Documents:
    def counts(self, tokens: Tensor) -> Tensor:
        return tokens != END


class _Model(nn.Module):
    """Logits that depend on all tokens so far; it counts its passes, and remembers the tokens of the first.

    make: what makes outputs of these logits.
    """

    def __init__(self, vocab: int, make: Outputs = WholeLogits) -> None:
        super().__init__()
        self.make = make
        draw = torch.Generator().manual_seed(5)
        self.table = nn.Parameter(torch.randn(vocab, WIDTH, generator=draw, dtype=torch.float64))
        self.out = nn.Parameter(torch.randn(vocab, WIDTH, generator=draw, dtype=torch.float64) / WIDTH)
        self.passes: list[Tensor] = []

    def run(self, tokens: Tensor) -> Any:
        self.passes.append(tokens)
        weight = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1], dtype=self.table.dtype)) / tokens.shape[1]
        return self.make(weight @ self.table[tokens] @ self.out.T)


def check_loss(objective: Objective, passes: int, vocab: int, seq: int, outputs: Outputs | None = None) -> None:
    """The clauses of `inputs`, `weights` and `loss`. passes: as the planner says. outputs: as of `check_objective`.

    Raises AssertionError with the clause that does not hold.
    """
    model = partial(_Model, vocab, outputs or WholeLogits)
    has(objective, "an objective", "inputs", "weights", "loss")
    draw = torch.Generator().manual_seed(3)
    tokens = torch.randint(vocab, (ROWS, seq + 1), generator=draw)
    tokens[0, :-2], tokens[2, 1] = END, END  # the labels of the first row hardly count
    keys = sample_keys(1, 0, ROWS, "cpu") if getattr(objective, "draws", False) else None
    _check_draws(objective, tokens, keys, model)
    names: set[frozenset[str]] = set()
    for documents in (None, _Documents()) if outputs is None else (None,):
        batch = Batch(tokens.clone(), keys, documents)
        _check_weights(objective, batch)
        _check_batch(objective, batch, passes, model, names)
        (_check_rows if outputs is None else _check_order)(objective, batch, model)
    if outputs is None:
        _check_none(objective, Batch(torch.full_like(tokens, END), keys, _Documents()), model)


def _check_draws(objective: Objective, tokens: Tensor, keys: Tensor | None, make: Callable[[], _Model]) -> None:
    """That what fails without keys does not succeed with them."""

    def fails(batch: Batch) -> bool:
        try:
            objective.weights(batch), objective.loss(make().run, batch)
        except Exception:  # noqa: BLE001 a component may raise anything
            return True
        return False

    if keys is None and fails(Batch(tokens.clone())):
        used = not fails(Batch(tokens.clone(), sample_keys(1, 0, ROWS, "cpu")))
        hold(not used, "an objective that uses the keys of a batch has `draws`, True")


def _check_none(objective: Objective, batch: Batch, make: Callable[[], _Model]) -> None:
    """Of a batch in whose documents no label counts."""
    model = make()
    mean = objective.loss(model.run, batch).mean
    if mean.requires_grad:
        mean.backward()
    found = [mean, *(each.grad for each in model.parameters() if each.grad is not None)]
    hold(all(bool(each.isfinite().all()) for each in found), "loss and gradients are finite where no label counts")


def _check_weights(objective: Objective, batch: Batch) -> None:
    state, tokens = torch.get_rng_state(), batch.tokens.clone()
    with NoWait():
        inputs, weights = objective.inputs(batch), objective.weights(batch)
    hold(torch.equal(batch.tokens, tokens), "inputs() and weights() leave the batch as it is")
    hold(torch.equal(torch.get_rng_state(), state), "inputs() and weights() draw no numbers from torch's own generator")
    shape = (ROWS, batch.tokens.shape[1] - 1)
    hold(
        isinstance(inputs, Tensor) and inputs.dtype == torch.int64 and inputs.shape == shape,
        "inputs() gives int64 [batch, seq]",
    )
    counts = None if batch.documents is None else batch.documents.counts(batch.tokens[:, :-1])
    if weights is None:
        hold(counts is None, "labels that do not count in their documents have the weight 0")
        return
    hold(isinstance(weights, Tensor) and weights.shape == shape, "weights() gives [batch, seq] or None")
    hold(bool((weights >= 0).all()), "no weight is negative")
    if counts is not None:
        hold(not bool(weights[~counts].any()), "labels that do not count in their documents have the weight 0")


def _check_batch(
    objective: Objective, batch: Batch, passes: int, make: Callable[[], _Model], names: set[frozenset[str]]
) -> None:
    """names: those of metrics, of each call so far."""
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        objective.loss(make().to(dtype).run, batch)  # may set up what later calls use
        model = make().to(dtype)
        state, tokens = torch.get_rng_state(), batch.tokens.clone()
        with NoWait():
            found = objective.loss(model.run, batch)
        _check_form(found)
        names.add(frozenset(found.metrics))
        hold(len(names) == 1, f"metrics have the same names each time; {sorted(frozenset.union(*names))} are not")
        hold(torch.equal(batch.tokens, tokens), "the batch is left as it is")
        hold(torch.equal(torch.get_rng_state(), state), "loss() draws no numbers from torch's own generator")
        hold(len(model.passes) == passes, f"loss() makes {passes} passes, as its planner says, not {len(model.passes)}")
        hold(torch.equal(model.passes[0], objective.inputs(batch)), "the first pass is over inputs()")
        hold(found.mean.requires_grad, "the loss has a gradient")
        found.mean.backward()
        gradients = [each.grad for each in model.parameters()]
        finite = all(each is not None and bool(each.isfinite().all()) for each in gradients)
        hold(finite and bool(found.mean.isfinite()), "loss and gradients are finite")
        again = objective.loss(model.run, batch)
        hold(torch.equal(again.mean, found.mean), "loss() is a pure function: two calls give the same bits")
        with torch.no_grad():
            evaluated = objective.loss(model.run, batch)
        same = any(torch.allclose(evaluated.mean.double(), each.double(), atol=0.0) for each in found.metrics.values())
        hold(
            same or torch.equal(evaluated.mean, found.mean),
            "without gradients the loss is the same, or one of its metrics",
        )


def _check_form(found: Any) -> None:
    hold(isinstance(found, Loss), f"loss() gives a Loss, not a {type(found).__name__}")
    hold(isinstance(found.metrics, Mapping), f"metrics are by name, not {type(found.metrics).__name__}")
    for name, value in {"mean": found.mean, **found.metrics}.items():
        hold(isinstance(value, Tensor) and value.dim() == 0, f"{name} is a scalar tensor")
    hold(found.mean.dtype in (torch.float32, torch.float64), "the mean is in fp32 or wider")
    for name, value in found.metrics.items():
        hold(is_word(name) and name != "loss", f"the name of a metric is a word, and not `loss`; {name!r} is not")
        hold(not value.requires_grad, f"the metric {name} has no gradient")


def _check_rows(objective: Objective, batch: Batch, make: Callable[[], _Model]) -> None:
    """The loss of a batch is the mean of the losses of its rows, each by its share of the weights."""
    model = make()
    rows = [
        Batch(batch.tokens[at : at + 1], None if batch.keys is None else batch.keys[at : at + 1], batch.documents)
        for at in range(ROWS)
    ]
    weights = [objective.weights(row) for row in rows]
    counts = torch.stack([torch.ones(()) if each is None else each.sum() for each in weights]).double()

    def of_rows() -> Tensor:
        losses = torch.stack([objective.loss(model.run, row).mean for row in rows])
        return (losses * counts).sum() / counts.sum()

    with torch.no_grad():
        whole, expected = objective.loss(model.run, batch).mean, of_rows()
    hold(
        bool((whole - expected).abs() <= 1e-9 * (1 + expected.abs())),
        "the loss is the mean over what counts: that of a batch follows from those of its samples and their weights",
    )
    parts, own = list(model.parameters()), objective.loss(model.run, batch).mean
    for got, wanted in zip(torch.autograd.grad(own, parts), torch.autograd.grad(of_rows(), parts), strict=True):
        near = bool((got - wanted).abs().amax() <= 1e-9 * (1 + wanted.abs().amax()))
        hold(near, "so is its gradient: that of a batch follows from those of its samples and their weights")


def _check_order(objective: Objective, batch: Batch, make: Callable[[], _Model]) -> None:
    """Of samples that are compared with each other: the loss is the same in another order of them."""
    model, keys = make(), batch.keys
    turned = Batch(batch.tokens.flip(0), None if keys is None else keys.flip(0), batch.documents)
    with torch.no_grad():
        one, other = (objective.loss(model.run, each).mean for each in (batch, turned))
    clause = "the loss does not depend on the order of the samples in a batch"
    hold(bool((one - other).abs() <= 1e-9 * (1 + one.abs())), clause)
    clause = (
        "the loss is the mean over what counts: that of a batch follows from those of its samples and their weights"
    )
    not_applicable(clause, "it compares the samples of a batch with each other")

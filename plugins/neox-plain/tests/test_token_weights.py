"""What batches count for where some of their tokens do not."""

from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from neox_causal_lm.api import NextToken
from neox_gpt.documents import DocumentRules
from neox_plain.criterion import Criterion
from neox_plain.token_weights import shares_of
from torch.nn import functional as F

from neox_core.contracts.objective import Batch, Loss
from neox_core.errors import PluginError
from neox_core.parallel.groups import Groups
from neox_core.plan.component import ComponentRef

ALONE = Groups(None, None, 0, 1)
RULES = DocumentRules(eod=3, mask_loss=True)


def counts(*batches: torch.Tensor) -> list[torch.Tensor]:
    """How many labels of each batch count, as the objective says."""
    objective = NextToken()
    weights = [objective.weights(Batch(each, None, RULES)) for each in batches]
    return [each.sum() for each in weights if each is not None]


def test_the_mean_of_weighed_means_is_the_mean_over_tokens() -> None:
    batches = torch.randint(5, (4, 2, 8), generator=torch.Generator().manual_seed(0))
    batches[2, :, :5] = 3  # hardly anything counts here
    logits = torch.randn(4, 2, 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    labels = torch.stack([each[:, 1:].masked_fill(each[:, :-1] == 3, -100) for each in batches])
    expected = F.cross_entropy(logits.flatten(0, 2), labels.flatten())
    means = [F.cross_entropy(*(each.flatten(0, 1) for each in pair)) for pair in zip(logits, labels, strict=True)]
    weights = shares_of(counts(*batches), ALONE)
    found = torch.stack([mean * weight for mean, weight in zip(means, weights, strict=True)]).mean()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    assert abs(torch.stack(means).mean() - expected) > 1e-3


def test_a_batch_in_which_nothing_counts_weighs_nothing() -> None:
    some, nothing = torch.zeros(1, 5, dtype=torch.int64), torch.full((1, 5), 3)
    assert torch.stack(list(shares_of(counts(some, nothing), ALONE))).tolist() == [2.0, 0.0]
    assert torch.stack(list(shares_of(counts(nothing, nothing), ALONE))).tolist() == [0.0, 0.0]


class RaisesInWeights:
    """An objective."""

    def __init__(self, plan: object, settings: None) -> None: ...

    def inputs(self, batch: Batch) -> torch.Tensor:
        return batch.tokens

    def weights(self, batch: Batch) -> torch.Tensor | None:
        raise ZeroDivisionError("no such weight")

    def loss(self, run: object, batch: Batch) -> Loss:
        return Loss(torch.zeros(()))


def test_a_fault_names_the_clause_of_the_contract() -> None:
    reference = ComponentRef("objective", "broken", "mine", "1", f"{__name__}:RaisesInWeights")
    batches = iter([Batch(torch.zeros(1, 2, dtype=torch.int64), None, RULES)])
    said = (
        r"mine:broken 1 failed in weights\(\), which gives what each label counts for, .*: ZeroDivisionError: no such"
    )
    with pytest.raises(PluginError, match=said):
        list(Criterion(reference, None).shares(batches, ALONE))


class Compares(RaisesInWeights):
    """Two passes, and two without gradients, as of a model that it is compared with."""

    def loss(self, run: Callable[[torch.Tensor], torch.Tensor], batch: Batch) -> Loss:
        with torch.no_grad():
            other = run(batch.tokens) + run(batch.tokens)
        return Loss((run(batch.tokens) - run(batch.tokens) - other).sum())


class Outputs:
    auxiliary_losses: ClassVar[dict[str, torch.Tensor]] = {}
    metrics: ClassVar[dict[str, torch.Tensor]] = {}

    def __add__(self, other: object) -> torch.Tensor:
        return torch.ones((), requires_grad=True)

    __sub__ = __add__


def test_passes_are_counted_with_those_that_have_no_gradients() -> None:
    """Forward is a third of forward and backward. An evaluation in between changes nothing."""
    criterion = Criterion(ComponentRef("objective", "compares", "mine", "1", f"{__name__}:Compares"), None)
    compute = criterion.of(Batch(torch.zeros(1, 2, dtype=torch.int64), None, None))
    assert criterion.passes == 1
    compute(lambda tokens: Outputs())
    with torch.no_grad():
        compute(lambda tokens: Outputs())
    assert criterion.passes == 2 + 2 / 3


class MeasuresMuch(RaisesInWeights):
    count: ClassVar[int] = 1000

    def loss(self, run: Callable[[torch.Tensor], torch.Tensor], batch: Batch) -> Loss:
        return Loss(torch.zeros(()), {str(each): torch.zeros(()) for each in range(self.count)})


def test_an_objective_has_a_thousand_metrics_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    def compute() -> None:
        criterion = Criterion(ComponentRef("objective", "much", "mine", "1", f"{__name__}:MeasuresMuch"), None)
        criterion.of(Batch(torch.zeros(1, 2, dtype=torch.int64), None, None))(lambda tokens: tokens)

    compute()
    monkeypatch.setattr(MeasuresMuch, "count", 1001)
    with pytest.raises(
        PluginError, match=r"mine:much 1: loss\(\) gives 1,001 metrics: a component gives 1,000 at most"
    ):
        compute()

"""The check of an evaluator: numbers of a model that is one table, on one rank and on two."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve

from neox_author.testing.clauses import clauses, has, hold, is_word
from neox_author.testing.plans import example_plan
from neox_author.testing.plugins import build
from neox_author.testing.two_ranks import on_two_ranks
from neox_core.plan.runfile import DataSource

if TYPE_CHECKING:
    from torch import Tensor

    from neox_core.hooks.catalog import Catalog

VOCAB, SEQ, BATCHES, MICRO = 64, 8, 3, 4
SAME = "all ranks get the same numbers, those of one rank"


@clauses
def check_evaluator(catalog: Catalog, name: str, **settings: Any) -> None:
    """The clauses of contracts.Evaluator. Raises AssertionError with the one that is broken.

    Its model is a table with the loss of each token, its datasets are two of unlike tokens.
    """
    entry = catalog.find("evaluator", name)
    target, chosen = entry.load(), build(entry, **settings)
    door = _Door()
    evaluator = target(door, chosen)
    has(evaluator, "an evaluator", "evaluate")
    measures = getattr(evaluator, "measures", True)
    before = door.engine.table.clone()
    numbers = _evaluate(evaluator, 10, measures)
    hold(door.engine.table.equal(before), "it leaves the weights as they are")
    hold(_evaluate(evaluator, 10, measures) == numbers, "the same weights give the same numbers")
    if measures:
        door.engine.table += 1.0
        hold(_evaluate(evaluator, 20, measures) != numbers, "other weights give other numbers: it measures the model")

    def act(rank: int, group: Any) -> dict[str, float]:
        return _evaluate(target(_Door(rank, group), chosen), 10, measures)

    for theirs in on_two_ranks(act, "every rank makes the same collective calls"):
        hold(theirs.keys() == numbers.keys(), f"{SAME}; not {', '.join(sorted(theirs))}")
        for each, value in numbers.items():
            close = math.isclose(theirs[each], value, rel_tol=1e-5, abs_tol=1e-6) or math.isnan(value)
            hold(close, f"{SAME}; {each} is {theirs[each]}, and {value} on one")


def _evaluate(evaluator: Any, step: int, measures: bool) -> dict[str, float]:
    random.seed(random.SystemRandom().random())  # as another process has it
    import torch

    numbers = evaluator.evaluate(step)
    hold(torch.is_grad_enabled(), "it leaves gradients on: torch.set_grad_enabled() is as it was")
    hold(torch.get_default_dtype() == torch.float32, "it leaves torch.set_default_dtype() as it was")
    wanted = "a float for each name, and one or more" if measures else "no numbers, as `measures` says"
    right = isinstance(numbers, Mapping) and all(isinstance(each, float) for each in numbers.values())
    hold(right and bool(numbers) is measures, f"evaluate() returns {wanted}; it returns {numbers!r}")
    for each in numbers:
        hold(is_word(each), f"a name is made of letters, digits, `_`, `.` and `-`, not {each!r}")
    ours = sorted({"loss", "lr", "valid_loss", "valid_perplexity", "test_loss", "test_perplexity"} & numbers.keys())
    hold(not ours, f"its names are none of the run's; it has {', '.join(ours)}")
    return dict(numbers)


class _Engine:
    """A model that is a table: the loss of a batch is the mean of what it has for the tokens."""

    def __init__(self) -> None:
        import torch

        self.table = torch.linspace(0.5, 4.0, VOCAB) ** 2

    def evaluate(self, batches: Iterable[Tensor]) -> list[Tensor]:
        return [self.table[batch[:, 1:]].mean() for batch in batches]

    def whole_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield "table", self.table


class _Samples:
    """Samples of one dataset: the tokens of "first" are the lower half of the ids."""

    notes = ()

    def __init__(self, kinds: Sequence[str]) -> None:
        self.kinds = list(kinds)

    def __len__(self) -> int:
        return BATCHES * MICRO

    def read(self, index: int, into: Any) -> None:
        upper = self.kinds[index % len(self.kinds)] == "second"
        into[:] = [(7 * index + 5 * place) % (VOCAB // 2) + upper * (VOCAB // 2) for place in range(SEQ + 1)]

    def identify(self, indices: Any) -> Any:
        return indices[:, None]

    def in_words(self) -> Sequence[str]:
        return self.kinds


class _Door:
    """An `EvaluationRun` of two datasets."""

    def __init__(self, rank: int = 0, group: Any = None) -> None:
        import torch

        from neox_core.parallel.context import BuildContext
        from neox_core.parallel.groups import Groups

        ranks = 1 if group is None else 2
        plan = example_plan(Path("unused"), ranks=(ranks,))
        plan = evolve(
            plan,
            model=evolve(plan.model, seq_length=SEQ, padded_vocab_size=VOCAB),
            batch=evolve(plan.batch, micro_batch=MICRO // ranks, train_batch=MICRO, data_parallel=ranks),
            data=evolve(plan.data, train=_sources(), valid=_sources()),
            train=evolve(plan.train, eval_iters=BATCHES),
        )
        groups = Groups(group, group, rank, ranks)
        self.plan, self.vocab_size, self.engine = plan, VOCAB, _Engine()
        self.context = BuildContext(torch.device("cpu"), torch.float32, groups, 1)

    def open(self, sources: Sequence[DataSource]) -> _Samples:
        return _Samples([Path(each.prefix).name for each in sources or _sources()])

    def loss(self, samples: _Samples) -> float:
        import torch
        import torch.distributed as dist

        groups = self.context.groups
        mean = torch.stack(self.engine.evaluate(self._batches(samples))).mean()
        if groups.world is not None:
            dist.all_reduce(mean, group=groups.world)
            mean /= groups.data_size
        return float(mean)

    def _batches(self, samples: _Samples) -> Iterator[Tensor]:
        import torch

        groups, micro = self.context.groups, self.plan.batch.micro_batch
        for index in range(BATCHES):
            batch = torch.empty(micro, SEQ + 1, dtype=torch.int64)
            for row in range(micro):
                samples.read((index * groups.data_size + groups.data_rank) * micro + row, batch[row].numpy())
            yield batch


def _sources() -> tuple[DataSource, ...]:
    return DataSource("kit/first", 1.0), DataSource("kit/second", 1.0)

"""The evaluator of a run: the harness asks the model that is being trained, on all ranks and in any layout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from neox_plain.api import spread_of

from neox_core.data.batches import build_tokenizer
from neox_core.errors import ConfigError
from neox_core.parallel.context import DTYPES, BuildContext
from neox_core.parallel.groups import Groups
from neox_lm_eval.model import NeoxLM, longest, no_tokenizer
from neox_lm_eval.share import Share
from neox_lm_eval.tasks import Tasks, by_name

if TYPE_CHECKING:
    from neox_core.contracts.events import EvaluationRun
    from neox_lm_eval.settings import LMEvalSettings


class LMEval:
    """`<task>_<metric>` for each metric of each task.

    Tensor-parallel ranks ask the model that they share; where its layers or weights are split otherwise, by a pipeline
    or ZeRO 3, each rank puts together a copy. Batches of requests are shared among the copies.
    """

    def __init__(self, run: EvaluationRun, settings: LMEvalSettings) -> None:
        tokenizer = build_tokenizer(run.plan)
        if tokenizer is None:
            raise no_tokenizer("lm_eval")
        if any(spread_of(each) is not None for each in run.engine.model.parameters()):
            hint = "run `neox eval --load` on its checkpoints"
            raise ConfigError("lm_eval cannot ask a model whose experts are spread over ranks", hint=hint)
        self.run = run
        self.block = settings.lm_eval
        self.tokenizer = tokenizer
        self.tasks = Tasks.load(self.block.evaluation())

    def evaluate(self, step: int) -> dict[str, float]:
        if self.block.interval is not None and step % self.block.interval:
            return {}
        with self._model() as (model, share):
            lm = NeoxLM(
                model,
                self.tokenizer,
                longest=longest(model, self.run.plan.model),
                device=self.run.context.device,
                batch_size=self.block.batch_size,
                share=share,
                around=self._around,
            )
            return by_name(self.tasks.scores(lm))

    def _around(self) -> torch.autocast:
        cast = self.run.plan.precision.autocast
        return torch.autocast(
            self.run.context.device.type, DTYPES[cast] if cast is not None else None, enabled=cast is not None
        )

    @contextmanager
    def _model(self) -> Iterator[tuple[Any, Share]]:
        """A model in evaluation that this rank can ask, and its share of the batches. Collective."""
        engine, groups = self.run.engine, self.run.context.groups
        with engine.at_hand():
            if engine.partitioned or groups.pipe_size > 1 or groups.tensor.sequence_parallel:
                yield self._copy().eval(), _of_all(groups)
                return
            engine.model.eval()
            try:
                yield engine.model, Share(groups.data_rank, groups.data_size, groups.data)
            finally:
                engine.model.train()

    def _copy(self) -> Any:
        """A whole model on this rank. Collective."""
        context = self.run.context
        take = partial(torch.Tensor.to, device=context.device, dtype=context.dtype, copy=True)
        weights = {name: take(weight.detach()) for name, weight in self.run.engine.whole_weights()}
        alone = BuildContext(context.device, context.dtype, Groups(None, None, 0, 1), context.seed)
        architecture = self.run.plan.architecture.load()[0](self.run.plan.model)
        return architecture.build(self.run.vocab_size, alone, weights, eod=self.tokenizer.eod)


def _of_all(groups: Groups) -> Share:
    world = groups.world
    return Share() if world is None else Share(world.rank(), world.size(), world)

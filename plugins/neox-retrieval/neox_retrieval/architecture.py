"""The retriever behind `contracts.Architecture`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from neox_gpt.api import GPTArchitecture

from neox_core.errors import CheckpointError, ConfigError, UsageError
from neox_retrieval.start import start

if TYPE_CHECKING:
    from torch import Tensor, nn

    from neox_core.contracts import Tokenizer
    from neox_core.parallel.context import BuildContext
    from neox_core.parallel.row import BuildStage
    from neox_core.plan.runfile import RunPlan
    from neox_retrieval.planner import RetrieverPlan


class RetrieverArchitecture(GPTArchitecture):
    """A planned retriever."""

    tables: Any = tuple(f"{tower}.{part}" for tower in ("query", "block") for part in ("embedding", "position"))
    causal = False

    def build(
        self,
        vocab_size: int,
        context: BuildContext,
        weights: Mapping[str, Tensor] | None = None,
        *,
        eod: int | None = None,
        recompute_by: Callable[..., Tensor] | None = None,
    ) -> Any:
        plan = cast("RetrieverPlan", self.plan)
        stored = None if weights is None else weights.get("query_head.weight")
        if stored is not None and len(stored) != plan.head_size:  # before a model of that size takes memory
            message = f"weights of another model: their vectors have {len(stored)} elements, not {plan.head_size}"
            raise CheckpointError(message, hint="set ict-head-size as the run had it")
        model: Any = super().build(vocab_size, context, weights, eod=eod, recompute_by=recompute_by)
        model.join(context.groups)
        if weights is None:
            start(plan, model)
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
        raise ConfigError("a retriever has no pipeline: it has two encoders", hint="pipe-parallel-size: 1")

    def sample(self, model: Any, tokenizer: Tokenizer, prompt: str) -> str:
        raise UsageError("a retriever does not continue a text", hint="`neox retrieval search` finds blocks for one")

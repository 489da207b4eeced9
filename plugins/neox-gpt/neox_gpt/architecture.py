"""The decoder behind `contracts.Architecture`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen
from neox_kernels.api import use_kernels

from neox_gpt.attention.scores import stores_scores
from neox_gpt.build import build_decoder_stage, build_model
from neox_gpt.generation.generate import sample
from neox_gpt.matmul import linear
from neox_gpt.model_inputs import load_position
from neox_gpt.ops import BLOCK_SPARSE, SOFTMAXES
from neox_gpt.sparse_contracts import SparseUse

if TYPE_CHECKING:
    from torch import Tensor, nn

    from neox_core.contracts import Tokenizer
    from neox_core.parallel.context import BuildContext
    from neox_core.parallel.row import BuildStage
    from neox_core.plan.runfile import RunPlan
    from neox_gpt.config.plan import GPTPlan
    from neox_gpt.gpt import GPT


@frozen
class GPTArchitecture:
    """A planned decoder."""

    plan: GPTPlan
    tables = ("embedding", "position", "head")

    def build(
        self,
        vocab_size: int,
        context: BuildContext,
        weights: Mapping[str, Tensor] | None = None,
        *,
        eod: int | None = None,
        recompute_by: Callable[..., Tensor] | None = None,
    ) -> GPT:
        return build_model(self.plan, vocab_size, context, weights, eod=eod, recompute_by=recompute_by)

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
        return build_decoder_stage(plan, vocab_size, context, build, eod=eod, recompute_by=recompute_by)

    def sample(self, model: Any, tokenizer: Tokenizer, prompt: str) -> str:
        return sample(model, tokenizer, prompt)

    def product(self, x: Tensor, weight: Tensor) -> Tensor:
        return linear(x, weight)

    def use_kernels(
        self,
        model: nn.Module,
        context: BuildContext,
        dtype: torch.dtype,
        record: Path | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> Sequence[str]:
        return use_kernels(model, self, self.plan.kernels, context, dtype, record, optimizer)

    def op_shape(self, op: str, context: BuildContext) -> tuple[int, ...]:
        plan, share = self.plan, context.groups.tensor.share
        heads, seq = share(plan.num_attention_heads), plan.seq_length
        if op in SOFTMAXES:
            return (1, heads, seq, seq)
        if op in ("rotary_pair", BLOCK_SPARSE):
            return (1, heads, seq, plan.head_width)
        if op in ("geglu", "swiglu"):
            return (1, seq, 2 * share(plan.intermediate_size))
        return (1, seq, share(plan.intermediate_size) if op == "bias_gelu" else plan.hidden_size)

    def kernel_use(self, op: str) -> SparseUse | None:
        if op != BLOCK_SPARSE:
            return None
        blocks = {each.load()[1].block for each in self.plan.layouts}
        return SparseUse(tuple(sorted(blocks)), bias=self._is_biased, dropout=self.plan.attention_dropout > 0)

    def instead_of(self, op: str, device: torch.device) -> str:
        if op not in SOFTMAXES:
            return ""
        masked = self.plan.reset_attention_mask or self.plan.attention_softcap is not None or self._is_biased
        stored = stores_scores(device, masked=masked, drops=self.plan.attention_dropout > 0)
        return "" if stored else "attention that stores no scores"

    @property
    def _is_biased(self) -> bool:
        position = load_position(self.plan)
        return position.score_bias(position.prepare(torch.arange(1), torch.float32)) is not None

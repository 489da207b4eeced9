"""The objective `distillation`: predict the next token, and as a teacher does (arXiv:1503.02531)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from neox_causal_lm.api import CausalLM
from neox_gpt.api import Teacher, gpt_plan_in
from torch.nn import functional as F

from neox_compression.teacher.folder import of_plan
from neox_core.contracts.objective import IGNORED, Loss

if TYPE_CHECKING:
    from neox_gpt.api import GPTPlan
    from torch import Tensor

    from neox_compression.config.sections.distillation import DistillationSettings
    from neox_core.contracts.objective import Batch, Run
    from neox_core.plan.runfile import RunPlan


class Distillation(CausalLM):
    """Samples are those of causal-lm. The teacher is read before the first batch of training, whole on each rank."""

    def __init__(self, plan: RunPlan, settings: DistillationSettings) -> None:
        super().__init__(plan)
        block = settings.distillation
        self._weight, self._temperature = block.weight, block.temperature
        self._model: GPTPlan = gpt_plan_in(plan)
        self._folder = Path(block.teacher or of_plan(self._model) or "")
        self._teacher: Any = None

    def loss(self, run: Run, batch: Batch) -> Loss:
        """In training (1 - weight) x cross-entropy + weight x temperature^2 x divergence from the teacher's."""
        tokens, labels = self.inputs(batch), self.labels(batch)
        outputs = run(tokens)
        cross_entropy = outputs.cross_entropy(labels)
        if not torch.is_grad_enabled():
            return Loss(cross_entropy)
        ours = outputs.logits()
        with torch.no_grad():
            theirs = self._logits(tokens, ours.dtype, batch)
        counts = labels != IGNORED
        apart = (divergence(ours, theirs, self._temperature) * counts).sum() / counts.sum().clamp(min=1)
        loss = (1 - self._weight) * cross_entropy + self._weight * self._temperature**2 * apart
        return Loss(loss, {"cross_entropy": cross_entropy.detach(), "divergence": apart.detach()})

    def _logits(self, tokens: Tensor, dtype: torch.dtype, batch: Batch) -> Tensor:
        if self._teacher is None:
            self._teacher = Teacher(self._folder).build(self._model, tokens.device, dtype)
        # those of another model only say which labels count
        self._teacher.documents = batch.documents if hasattr(batch.documents, "index") else None
        found: Tensor = self._teacher.logits(tokens)
        return found


def divergence(ours: Tensor, theirs: Tensor, temperature: float) -> Tensor:
    """Kullback-Leibler divergence of the softmax of `ours` from that of `theirs`: [..., vocab] to [...], in fp32."""
    mine = F.log_softmax(ours.float() / temperature, -1)
    other = F.log_softmax(theirs.float() / temperature, -1)
    return F.kl_div(mine, other, reduction="none", log_target=True).sum(-1)

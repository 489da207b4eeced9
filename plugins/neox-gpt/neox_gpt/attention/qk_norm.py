"""Norms of queries and keys, which keep scores from growing (Dehghani et al. 2023, arXiv:2302.05442)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import evolve
from torch import Tensor, nn

from neox_core.parallel.tensor import ALONE
from neox_gpt.attention.size import norm_widths

if TYPE_CHECKING:
    from neox_core.parallel.tensor import TensorParallel
    from neox_gpt.contracts import MixerShape


class QKNorm(nn.Module):
    """Queries and keys [batch, heads, seq, head_dim] -> the same shapes, by norms of the model's kind.

    head: each head by itself, with one norm for the queries and one for the keys, as in Qwen 3.
    all: all heads of a token at once, as in OLMo 2. shared: the same, by one norm for queries and keys, as in GPT-NeoX.

    A tensor-parallel rank has some of the heads. What looks at all of them gathers them, so that the numbers do not
    depend on the ranks. Each rank has the whole norms, whose gradients are the sum over the ranks.
    """

    def __init__(self, shape: MixerShape, tensor: TensorParallel = ALONE) -> None:
        super().__init__()
        if shape.norm is None:
            raise ValueError("norms of queries and keys need the model's norm")
        self.by_head = shape.qk_norm == "head"
        self.tensor = evolve(tensor, sequence_parallel=False)  # queries and keys are those of all positions
        for name, width in norm_widths(shape).items():
            self.add_module(name.removeprefix("qk_norm."), shape.norm(width))
        if tensor.size > 1 and not tensor.sequence_parallel:  # with it, `mark_parameters` does this
            for parameter in self.parameters():
                parameter.register_hook(tensor.add_up)

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        of_query, of_key = (getattr(self, name, None) or self.get_submodule("both") for name in ("query", "key"))
        return self._normed(of_query, query), self._normed(of_key, key)

    def _normed(self, norm: Any, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)  # [batch, seq, heads, head_dim]
        if self.by_head:
            normed: Tensor = norm(x)
            return normed.transpose(1, 2)
        flat, tensor = x.flatten(2), self.tensor
        width = flat.shape[2]
        # Each rank's heads look at all of them, so the gradients that the ranks have of these are added up.
        whole = norm(tensor.copy(tensor.restore(flat)))
        return whole.narrow(2, tensor.rank * width, width).view(x.shape).transpose(1, 2)

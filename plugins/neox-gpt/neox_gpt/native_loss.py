"""Chunks of the cross-entropy on a CPU by compiled code, which computes and exponentiates each logit once."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL, c_int, c_long, c_void_p
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from attrs import define
from neox_kernels.api import native
from torch import Tensor
from torch.nn import functional as F

from neox_gpt.tiles import KEEPS_NAN, in_memory, leaves_bf16_to_torch, multiplies_pairs

if TYPE_CHECKING:
    from neox_core.parallel.tensor import TensorParallel

SOURCE = Path(__file__).with_name("loss.cpp")


def native_chunks(states: Tensor, matrix: Tensor) -> NativeChunks | None:
    """What computes the chunks of these states [tokens, width] and words [rows, width]; None where torch does.

    The products are of numbers in bf16 where the processor multiplies those by AVX-512, else in fp32, of numbers in
    fp32 or bf16.
    """
    if not in_memory(states, matrix) or not states.numel() or not matrix.numel():
        return None
    if states.dtype not in (torch.float32, torch.bfloat16):
        return None
    narrow = states.dtype == torch.bfloat16 and multiplies_pairs()
    if narrow and (states.shape[1] % 2 or leaves_bf16_to_torch()):
        return None
    library = native(SOURCE, KEEPS_NAN)
    if library is None or (narrow and not library.loss_of_bf16()):
        return None
    if narrow:
        return NativeChunks(library, states, matrix.contiguous(), narrow)
    return NativeChunks(library, states.float(), matrix.float().contiguous(), narrow)


@define(eq=False)
class NativeChunks:
    """states: [tokens, width], matrix: [rows, width], of a tensor-parallel rank its rows. narrow: bf16, else fp32."""

    library: CDLL
    states: Tensor
    matrix: Tensor
    narrow: bool
    _kept: tuple[Tensor, Tensor] | None = None

    def size(self, wished: int) -> int:
        """Tokens of a chunk, a multiple of what the code takes at once; about twice those that are wished.

        Each chunk reads all words three times, and writes their gradients once.
        """
        step = int(self.library.loss_step())
        return max(step, 2 * wished // step * step)

    def losses(
        self,
        part: slice,
        labels: Tensor,
        kept: Tensor,
        tensor: TensorParallel,
        grad_states: Tensor | None,
        grad_matrix: Tensor | None,
    ) -> Tensor:
        """Of a chunk the losses [tokens of part], with any number where `labels` is of no row of any rank.

        labels: int64, of this rank's rows, else -1. kept: bool, which tokens have a gradient. grad_states: like the
        states; the chunk's part is written. grad_matrix: like the matrix; added to.
        """
        count, step, rows = len(labels), int(self.library.loss_step()), self.matrix.shape[0]
        states, labels, kept = _filled(self.states[part], labels, kept, (count + step - 1) // step * step)
        size = len(states)
        _let_profilers_count(count, self.matrix)
        powers, sums = (None, None) if grad_states is None else self._room(rows, size)
        highest, total = torch.empty(2, int(self.library.loss_blocks(c_long(rows))), size)
        own = torch.zeros(size)
        self._run("loss_powers", size, (states, self.matrix, labels), (powers, highest, total, own, sums))
        top = highest.amax(0)
        if tensor.size > 1:
            top = tensor.highest(top)
        shares = (highest - top).exp()
        whole = (total * shares).sum(0)
        if tensor.size > 1:
            whole, own = tensor.add_up(torch.stack([whole, own]))
        if grad_states is not None:
            scale, less = shares.div_(whole).mul_(kept), (own - top).exp_().div_(whole).sub_(1)
            grad = torch.empty(self.matrix.shape[1], size)
            read = states, self.matrix, labels, scale, less, powers, sums
            self._run("loss_gradients", size, read, (grad, grad_matrix))
            grad_states[part] = grad.T[:count]
        return (top - own + whole.log())[:count]

    def _room(self, rows: int, tokens: int) -> tuple[Tensor, Tensor]:
        """For the powers and their sums, which the first chunk makes: none is larger."""
        if self._kept is None:
            runs = int(self.library.loss_runs(c_long(rows)))
            powers = torch.empty(rows * tokens, dtype=self.matrix.dtype)
            self._kept = powers, torch.empty(runs * self.matrix.shape[1] * tokens)
        return self._kept

    def _run(self, name: str, tokens: int, read: Sequence[Tensor | None], written: Sequence[Tensor | None]) -> None:
        """A function of the library. Raises MemoryError where it got none."""
        sizes = map(c_long, (tokens, *self.matrix.shape))
        before, after, threads = _places(read), _places(written), c_int(torch.get_num_threads())
        if getattr(self.library, name)(*before, *sizes, *after, threads, c_int(self.narrow)):
            raise MemoryError("no memory for a chunk of the cross-entropy")


def _let_profilers_count(tokens: int, matrix: Tensor) -> None:
    """A profiler sees what goes by torch: the product of a chunk's states and words, here of tensors without memory.

    Only for one that looks: of such tensors torch's first product imports a second's worth of symbolic shapes.
    """
    by_deepspeed = F.linear is not torch._C._nn.linear  # which it replaces while it counts  # noqa: SLF001
    if by_deepspeed or torch._C._len_torch_dispatch_stack() or torch.autograd._profiler_enabled():  # noqa: SLF001
        F.linear(matrix.new_empty(tokens, matrix.shape[1], device="meta"), torch.empty_like(matrix, device="meta"))


def _filled(states: Tensor, labels: Tensor, kept: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """With tokens of zeros, which do not count, up to `size` of them. A label that does not count is -1."""
    more = size - len(states)
    labels = labels.where(kept, -1)
    if not more:
        return states.contiguous(), labels, kept
    return F.pad(states, (0, 0, 0, more)), F.pad(labels, (0, more), value=-1), F.pad(kept, (0, more))


def _places(tensors: Sequence[Tensor | None]) -> list[c_void_p]:
    return [c_void_p(None if each is None else each.data_ptr()) for each in tensors]

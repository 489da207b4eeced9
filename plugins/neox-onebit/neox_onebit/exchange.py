"""The mean over ranks of a vector, a bit for each number of it, with what is lost kept for the next time.

The vector is cut into blocks of one parameter each, which travel as signs and a size (`passes`). Each rank serves a
share of the blocks (figure 3 of arXiv:2102.02888):

    rank i   sends C[x_i + e_i] to the servers            e_i <- x_i + e_i - C[x_i + e_i]      worker's error
    server   m = mean_i C[x_i + e_i], sends C[m + s]      s   <- m + s - C[m + s]              server's error

so what everybody gets, plus the mean of e_i, plus s, is mean_i x_i plus the same sum before: nothing is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from neox_core.errors import CheckpointError
from neox_onebit.passes import Kernels, pack, unpack

if TYPE_CHECKING:
    from neox_onebit.wire import Wire


LARGEST, SMALLEST, STEP = 512, 128, 32
"""Of blocks: 64 bytes of signs and 4 of scale are 30 times less than fp32, 16 and 4 are 25 times less."""


def block_size(shapes: Sequence[torch.Size]) -> int:
    """How many numbers share a scale: a row of the matrix with the most rows, or an equal part of one.

    That is the embedding, where most rows have no gradient in a step: a scale that a row shares with its neighbour
    would move them. Where such parts cannot be, blocks of LARGEST go across the rows.
    """
    row = max(((shape[0], shape[1]) for shape in shapes if len(shape) == 2), default=(0, LARGEST))[1]
    return next((size for size in range(LARGEST, SMALLEST - 1, -STEP) if row % size == 0), LARGEST)


class Exchange:
    """The exchange of one vector for each parameter, of its shape."""

    def __init__(self, shapes: Sequence[torch.Size], wire: Wire, device: torch.device, kernels: Kernels) -> None:
        self._wire = wire
        self._kernels = kernels
        self._sizes = [shape.numel() for shape in shapes]
        self.block = block_size(shapes)
        self._rows = [-(-size // self.block) for size in self._sizes]
        self.rows = sum(self._rows)
        self.share = -(-self.rows // wire.size)  # of a server
        self.worker_error = torch.zeros(self.share * wire.size, self.block, device=device)
        self.server_error = torch.zeros(self.share, self.block, device=device)
        self._latest: tuple[tuple[bool, ...], Tensor] = (), torch.empty(0)

    def mean(self, values: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Of each vector its mean over the ranks, as far as it arrives; None takes no part, on any rank. Collective."""
        for value, flat in self._parts(self.worker_error, values):
            if value is not None:
                flat.add_(value.detach().reshape(-1))
        used = self._used(tuple(value is not None for value in values))
        got = self._sent(used) if self._wire.size > 1 else self._kept(used)
        return [None if value is None else flat.view_as(value) for value, flat in self._parts(got, values)]

    def laid_out(self, values: Sequence[Tensor | None]) -> Tensor:
        """The vectors in blocks, each from the beginning of one: [share * size, block], zeros between."""
        out = torch.zeros_like(self.worker_error)
        for value, flat in self._parts(out, values):
            if value is not None:
                flat.copy_(value.detach().reshape(-1))
        return out

    def taken_apart(self, blocks: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
        """What `laid_out` put together."""
        return [flat.view_as(value) for value, flat in self._parts(blocks, like) if value is not None]

    def state(self) -> dict[str, Tensor]:
        """The errors of this rank, without what no parameter has; a rank may have nothing to serve."""
        served = max(0, min(self.share, self.rows - self._wire.rank * self.share))
        found = {"worker_error": self.worker_error[: self.rows]}
        return found | ({"server_error": self.server_error[:served]} if served else {})

    def load(self, stored: Sequence[Mapping[str, Tensor]]) -> None:
        """The errors of all ranks of a run. Of as many ranks each takes its own; of others, all take the same sum.

        Raises CheckpointError for those of another version of this package, which cut blocks otherwise.
        """
        widths = {each["worker_error"].shape[1] for each in stored if each}
        if widths != {self.block}:
            raise CheckpointError(
                f"compression errors are in blocks of {', '.join(map(str, widths))} numbers, not of {self.block}",
                hint="continue with the version of neox-onebit that saved them, or start with finetune: true",
            )
        if len(stored) == self._wire.size:
            mine = stored[self._wire.rank]
            self.worker_error[: self.rows] = mine["worker_error"].to(self.worker_error)
            if "server_error" in mine:
                self.server_error[: len(mine["server_error"])] = mine["server_error"].to(self.server_error)
            return
        workers = torch.stack([each["worker_error"] for each in stored]).mean(0)
        servers = torch.cat([each["server_error"] for each in stored if "server_error" in each])
        self.worker_error[: self.rows] = (workers + servers).to(self.worker_error)
        self.server_error.zero_()

    def _parts(self, blocks: Tensor, values: Sequence[Tensor | None]) -> list[tuple[Tensor | None, Tensor]]:
        """Each value with the elements of its place, flat: views."""
        flat, first, found = blocks.view(-1), 0, []
        for value, rows, size in zip(values, self._rows, self._sizes, strict=True):
            found.append((value, flat.narrow(0, first, size)))
            first += rows * self.block
        return found

    def _used(self, takes_part: tuple[bool, ...]) -> Tensor:
        """How many elements of each block take part: fp32 [share * size, 1]; kept, since a copy waits for a GPU."""
        if takes_part != self._latest[0]:
            used, end = torch.zeros(len(self.worker_error), 1), 0
            for takes, rows, size in zip(takes_part, self._rows, self._sizes, strict=True):
                end += rows
                if takes and size:
                    used[end - rows : end] = self.block
                    used[end - 1] = size - (rows - 1) * self.block
            self._latest = takes_part, used.to(self.worker_error.device)
        return self._latest[1]

    def _sent(self, used: Tensor) -> Tensor:
        """What arrives of the workers' errors, which have the vectors in them."""
        wire, first = self._wire, self._wire.rank * self.share
        for_me = wire.swap(pack(self.worker_error, used, self._kernels).view(wire.size, self.share, -1))
        unpack(for_me, self.server_error, self._kernels)
        served = wire.gather(pack(self.server_error, used[first : first + self.share], self._kernels))
        got = torch.zeros_like(self.worker_error)
        unpack(served.view(1, len(got), -1), got, self._kernels)
        return got

    def _kept(self, used: Tensor) -> Tensor:
        """One rank alone sends nothing; it applies the errors that several ranks left behind."""
        got = self.worker_error.clone()
        self.worker_error.masked_fill_(used > 0, 0.0)
        return got

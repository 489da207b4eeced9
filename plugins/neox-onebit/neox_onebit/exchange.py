"""Average vectors over ranks with one bit per number, and add what is lost to the next exchange.

Each vector is cut into blocks, which are sent as signs and a scale (`passes`). Each rank serves a share of the blocks
(figure 3 of arXiv:2102.02888):

    rank i   sends C[x_i + e_i] to the servers            e_i <- x_i + e_i - C[x_i + e_i]      worker's error
    server   m = mean_i C[x_i + e_i], sends C[m + s]      s   <- m + s - C[m + s]              server's error

What every rank receives, plus the new mean of e_i, plus the new s, equals mean_i x_i plus the old mean of e_i, plus the
old s: nothing is lost.
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
"""Sizes of blocks. A block of 512 is 68 bytes, 30 times less than fp32; one of 128 is 20 bytes, 25 times less."""


def block_size(shapes: Sequence[torch.Size]) -> int:
    """How many numbers share a scale: a row of the matrix with the most rows, or an equal part of one.

    That matrix is the embedding, where most rows have no gradient in a step: a scale shared with a neighbouring row
    would move them. Where a row cannot be cut into such parts, blocks of LARGEST cross the rows.

    shapes: of the parameters
    """
    row = max(((shape[0], shape[1]) for shape in shapes if len(shape) == 2), default=(0, LARGEST))[1]
    return next((size for size in range(LARGEST, SMALLEST - 1, -STEP) if row % size == 0), LARGEST)


class Exchange:
    """The exchange of one vector for each parameter.

    shapes: of the parameters
    wire: to the other ranks
    device: of the vectors
    kernels: by op, what replaces the functions of `passes`
    """

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
        """Average each vector over the ranks, with errors that the next exchange makes up for. Collective.

        values: one for each parameter; None, on every rank, for a parameter that takes no part
        """
        for value, flat in self._parts(self.worker_error, values):
            if value is not None:
                flat.add_(value.detach().reshape(-1))
        used = self._used(tuple(value is not None for value in values))
        got = self._sent(used) if self._wire.size > 1 else self._kept(used)
        return [None if value is None else flat.view_as(value) for value, flat in self._parts(got, values)]

    def laid_out(self, values: Sequence[Tensor | None]) -> Tensor:
        """The vectors in blocks, [share * size, block]: each starts a block, and zeros fill its last one."""
        out = torch.zeros_like(self.worker_error)
        for value, flat in self._parts(out, values):
            if value is not None:
                flat.copy_(value.detach().reshape(-1))
        return out

    def taken_apart(self, blocks: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
        """The inverse of `laid_out`.

        blocks: [share * size, block]
        like: tensors of the shapes to return
        """
        return [flat.view_as(value) for value, flat in self._parts(blocks, like) if value is not None]

    def state(self) -> dict[str, Tensor]:
        """The errors of this rank without padding; no `server_error` where the rank serves nothing."""
        served = max(0, min(self.share, self.rows - self._wire.rank * self.share))
        found = {"worker_error": self.worker_error[: self.rows]}
        return found | ({"server_error": self.server_error[:served]} if served else {})

    def load(self, stored: Sequence[Mapping[str, Tensor]]) -> None:
        """Take up the errors that a run saved.

        stored: one `state()` for each rank of that run. With as many ranks as now, each takes its own; otherwise all
            take the same sum.

        Raises CheckpointError for blocks of another size, which another version of this package saved.
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
        """Each value with a flat view of its elements in `blocks`."""
        flat, first, found = blocks.view(-1), 0, []
        for value, rows, size in zip(values, self._rows, self._sizes, strict=True):
            found.append((value, flat.narrow(0, first, size)))
            first += rows * self.block
        return found

    def _used(self, takes_part: tuple[bool, ...]) -> Tensor:
        """How many elements of each block take part: fp32 [share * size, 1]. Kept, since a copy to a GPU waits."""
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
        """Exchange the workers' errors, to which the vectors are added, and return what arrives."""
        wire, first = self._wire, self._wire.rank * self.share
        for_me = wire.swap(pack(self.worker_error, used, self._kernels).view(wire.size, self.share, -1))
        unpack(for_me, self.server_error, self._kernels)
        served = wire.gather(pack(self.server_error, used[first : first + self.share], self._kernels))
        got = torch.zeros_like(self.worker_error)
        unpack(served.view(1, len(got), -1), got, self._kernels)
        return got

    def _kept(self, used: Tensor) -> Tensor:
        """For one rank, which sends nothing: apply the errors that a run of several ranks left."""
        got = self.worker_error.clone()
        self.worker_error.masked_fill_(used > 0, 0.0)
        return got

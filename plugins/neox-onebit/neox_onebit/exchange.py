"""The mean over ranks of a vector, a bit for each number of it, with what is lost kept for the next time.

Numbers are cut into blocks of BLOCK elements of one parameter; a block travels as its signs, eight to a byte, and its
mean size: C[x] = sign(x) * |x|_1 / d (section 4 of arXiv:2202.06009), the multiple of the signs that is nearest to x.
Each rank serves a share of the blocks (figure 3 of arXiv:2102.02888):

    rank i   sends C[x_i + e_i] to the servers            e_i <- x_i + e_i - C[x_i + e_i]      worker's error
    server   m = mean_i C[x_i + e_i], sends C[m + s]      s   <- m + s - C[m + s]              server's error

so what everybody gets, plus the mean of e_i, plus s, is mean_i x_i plus the same sum before: nothing is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from neox_onebit.wire import Wire

BLOCK = 512
"""Elements that share a scale: 64 bytes of signs and 4 of scale, 30 times less than fp32."""
_BYTES = BLOCK // 8


class Exchange:
    """The exchange of one vector for each parameter, of its shape. sizes: their numbers of elements."""

    def __init__(self, sizes: Sequence[int], wire: Wire, device: torch.device) -> None:
        self._wire = wire
        self._rows = [-(-size // BLOCK) for size in sizes]
        self._sizes = sizes
        self.rows = sum(self._rows)
        self.share = -(-self.rows // wire.size)  # of a server
        total = self.share * wire.size
        filled = torch.zeros(total, dtype=torch.float32)
        ends = torch.tensor(self._rows).cumsum(0)
        for end, count, size in zip(ends.tolist(), self._rows, sizes, strict=True):
            filled[end - count : end] = BLOCK
            filled[end - 1] = size - (count - 1) * BLOCK
        self._filled = filled.to(device).unsqueeze(1)  # [rows, 1], elements in use
        self.worker_error = torch.zeros(total, BLOCK, device=device)
        self.server_error = torch.zeros(self.share, BLOCK, device=device)
        self._mine = slice(wire.rank * self.share, (wire.rank + 1) * self.share)

    def mean(self, values: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Of each vector its mean over the ranks, as far as it arrives; None takes no part, on any rank. Collective."""
        sent = self.laid_out(values)
        idle = self._idle(values)
        kept = self.worker_error[idle].clone(), self.server_error[idle[self._mine]].clone()
        got = self._send(sent) if self._wire.size > 1 else self._alone(sent)
        self.worker_error[idle], self.server_error[idle[self._mine]] = kept
        return [None if value is None else flat.view_as(value) for value, flat in self._parts(got, values)]

    def laid_out(self, values: Sequence[Tensor | None]) -> Tensor:
        """The vectors in blocks, each from the beginning of one: [share * size, BLOCK], zeros between."""
        out = torch.zeros_like(self.worker_error)
        for value, flat in self._parts(out, values):
            if value is not None:
                flat.copy_(value.detach().reshape(-1))
        return out

    def taken_apart(self, blocks: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
        """What `laid_out` put together."""
        return [flat.view_as(value) for value, flat in self._parts(blocks, like) if value is not None]

    def _parts(self, blocks: Tensor, values: Sequence[Tensor | None]) -> list[tuple[Tensor | None, Tensor]]:
        """Each value with the elements of its place, flat: views."""
        flat, first, found = blocks.view(-1), 0, []
        for value, rows, size in zip(values, self._rows, self._sizes, strict=True):
            found.append((value, flat.narrow(0, first, size)))
            first += rows * BLOCK
        return found

    def _idle(self, values: Sequence[Tensor | None]) -> Tensor:
        """The blocks that take no part: bool [share * size]."""
        idle = torch.zeros(len(self.worker_error), dtype=torch.bool, device=self.worker_error.device)
        first = 0
        for value, rows in zip(values, self._rows, strict=True):
            idle[first : first + rows] = value is None
            first += rows
        return idle

    def _alone(self, sent: Tensor) -> Tensor:
        """One rank has nobody to send to; errors that more ranks have left behind are made good."""
        sent += self.worker_error
        self.worker_error.zero_()
        return sent

    def _send(self, sent: Tensor) -> Tensor:
        wire, share = self._wire, self.share
        self.worker_error += sent
        packed = compress(self.worker_error, self._filled)
        for_me = wire.swap(packed.view(wire.size, share, -1))  # uint8 [size, share, bytes]
        served = decompress(for_me.view(wire.size * share, -1)).view(wire.size, share, BLOCK).mean(0)
        _clear(self.worker_error.sub_(decompress(packed)), self._filled)
        filled = self._filled[self._mine]
        _clear(self.server_error.add_(served), filled)
        reply = compress(self.server_error, filled)
        _clear(self.server_error.sub_(decompress(reply)), filled)
        return decompress(wire.gather(reply).view(wire.size * share, -1))

    def state(self) -> dict[str, Tensor]:
        """The errors of this rank, without what no parameter has; a rank may have nothing to serve."""
        served = max(0, min(self.share, self.rows - self._wire.rank * self.share))
        found = {"worker_error": self.worker_error[: self.rows]}
        return found | ({"server_error": self.server_error[:served]} if served else {})

    def load(self, stored: Sequence[Mapping[str, Tensor]]) -> None:
        """The errors of all ranks of a run. Of as many ranks each takes its own; of others, all take the same sum."""
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


def compress(values: Tensor, filled: Tensor) -> Tensor:
    """fp32 [rows, BLOCK] -> uint8 [rows, BLOCK / 8 + 4]: the signs, least significant bit first, then the scale.

    filled: [rows, 1], of how many elements the scale is the mean size; the rest are 0.
    """
    scales = values.abs().sum(1, keepdim=True) / filled.clamp(min=1)
    bits = (values >= 0).view(-1, _BYTES, 8).to(torch.uint8) << _shifts(values.device)
    return torch.cat([bits.sum(-1, dtype=torch.uint8), scales.view(torch.uint8)], dim=1)


def decompress(packed: Tensor) -> Tensor:
    """The numbers that arrive: uint8 [rows, BLOCK / 8 + 4] -> fp32 [rows, BLOCK]."""
    scales = packed[:, _BYTES:].contiguous().view(torch.float32)
    positive = (packed[:, :_BYTES].unsqueeze(-1) >> _shifts(packed.device)) & 1
    return torch.where(positive.view(-1, BLOCK).bool(), scales, -scales)


def _clear(blocks: Tensor, filled: Tensor) -> None:
    """What has arrived has signs also where no element is in use: there it becomes 0."""
    short = (filled < BLOCK).squeeze(1)
    blocks[short] *= torch.arange(BLOCK, device=blocks.device) < filled[short]


def _shifts(device: torch.device) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)

"""Gradients averaged over data-parallel ranks, bucket by bucket, while the backward pass still runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from neox_core.parallel.groups import wait_for
from neox_plain.spread import spread_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

BUCKET = 25 << 20
"""Bytes of gradients that are sent together, at least; as torch's DistributedDataParallel has it."""


class GradientAverage:
    """The average of the gradients of `parameters` over the `size` ranks of `group`.

    `start` comes before the backward pass that completes the gradients, `finish` after it. A bucket is sent as soon as
    its gradients and those of the buckets before it are there, so that all ranks send in one order. Unlike torch's
    DistributedDataParallel it wraps no module, and it takes a parameter that no loss depends on as one of gradient 0.
    A part of a parameter that is spread over the ranks has the sum of their gradients but for those of its copies.

    parameters: of one dtype and device, in the order of the model; the backward pass comes to the last one first.
    look: called with each bucket's parameters and this rank's gradients of them, before they are sent.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        group: ProcessGroup | None,
        size: int,
        look: Callable[[list[nn.Parameter], list[Tensor]], None] = lambda *_: None,
    ) -> None:
        self._look = look
        self._group, self._size = group, size
        self._buckets = list(_buckets(reversed(list(parameters))))
        self._bucket_of = {id(each): index for index, bucket in enumerate(self._buckets) for each in bucket}
        self._missing = [0] * len(self._buckets)
        self._sent: list[tuple[Any, Tensor]] = []
        self._running = False
        self._hooks = [
            each.register_post_accumulate_grad_hook(self._arrived) for bucket in self._buckets for each in bucket
        ]

    def start(self) -> None:
        """The next backward pass completes the gradients."""
        self._missing = [len(bucket) for bucket in self._buckets]
        self._running = True

    def finish(self) -> None:
        """Make every gradient the average. Collective."""
        self._running = False
        while len(self._sent) < len(self._buckets):
            self._send()  # a bucket with a parameter that no loss of this rank depends on
        for bucket, (work, flat) in zip(self._buckets, self._sent, strict=True):
            wait_for(work)
            flat.mul_(1.0 / self._size)
            for each, part in zip(bucket, flat.split([each.numel() for each in bucket]), strict=True):
                each.grad = part.view_as(each)
        self._sent = []

    def close(self) -> None:
        """Take the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()

    def _arrived(self, parameter: Tensor) -> None:
        if not self._running:
            return
        self._missing[self._bucket_of[id(parameter)]] -= 1
        while len(self._sent) < len(self._buckets) and self._missing[len(self._sent)] == 0:
            self._send()

    def _send(self) -> None:
        """Start to add up the next bucket over the ranks. Its gradients are let go of: `finish` makes new ones."""
        bucket = self._buckets[len(self._sent)]
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in bucket]
        self._look(bucket, gradients)
        flat = torch.cat([each.reshape(-1) for each in gradients])
        for each in bucket:
            each.grad = None
        parts = spread_of(bucket[0])
        group = self._group if parts is None else parts.copies
        self._sent.append((dist.all_reduce(flat, group=group, async_op=True), flat))


def _buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    for each in parameters:
        if bucket and spread_of(bucket[0]) is not spread_of(each):
            yield bucket
            bucket = []
        bucket.append(each)
        if sum(one.nbytes for one in bucket) >= BUCKET:
            yield bucket
            bucket = []
    if bucket:
        yield bucket

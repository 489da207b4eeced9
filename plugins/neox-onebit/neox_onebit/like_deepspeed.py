"""1-bit Adam as DeepSpeed computed it up to version 0.19.6, the last to have it: `compatibility: deepspeed`.

The parameters of a group are one vector, as in DeepSpeed's fp16 optimizer. There is no bias correction and no floor of
the variance, and `freeze_step` counts the one step that DeepSpeed spent on initialising the optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

import torch
from torch import Tensor

from neox_core.errors import CheckpointError
from neox_onebit.adam import OneBitAdam
from neox_onebit.averaging import require_variance
from neox_onebit.passes import decompress, move, pack_signs
from neox_onebit.wire import Wire


class LikeDeepSpeed(OneBitAdam):
    """State: `exp_avg`, `exp_avg_sq`. Gradients are averaged in the first `freeze_step` - 1 steps, at least one."""

    def _averaged(self, step: int) -> bool:
        return step < max(2, self._freeze_step)

    def _warm_up(self) -> None:
        for group, parameter, state in self._live():
            if not state:
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            gradient, (beta1, beta2) = parameter.grad, group["betas"]
            state["exp_avg"].lerp_(gradient, 1 - beta1)
            state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        self._move()

    def _compressed(self) -> None:
        momenta = {}
        for group, parameter, state in self._live():
            require_variance(state, parameter)
            momenta[parameter] = state["exp_avg"].lerp_(parameter.grad, 1 - group["betas"][0])
        for parameter, mean in self._exchanged(momenta).items():
            self.state[parameter]["exp_avg"].copy_(mean)
        self._move()

    def _move(self) -> None:
        for group, parameter, state in self._live():
            kept = 1 - group["lr"] * group["weight_decay"]
            move(parameter, state["exp_avg"], state["exp_avg_sq"], kept, group["lr"], 1.0, group["eps"])

    def _new_exchange(self) -> WholeExchange:
        return WholeExchange([group["params"] for group in self.param_groups], self._wire)


class WholeExchange:
    """The exchange of one vector for each group of parameters: its signs, and one scale from each rank and server.

    A scale is the root mean square of what is sent. As in DeepSpeed, a vector is padded with zeros, which count in the
    scale, until each server has the same number of whole bytes.

    groups: the parameters of each group
    wire: to the other ranks
    """

    def __init__(self, groups: Sequence[Sequence[Tensor]], wire: Wire) -> None:
        self._wire = wire
        self._groups = [list(group) for group in groups]
        multiple = wire.size * (wire.size * 8 // gcd(wire.size, 8))
        self._sizes = [sum(each.numel() for each in group) for group in self._groups]
        filled = [-(-size // multiple) * multiple for size in self._sizes]
        devices = [group[0].device if group else torch.device("cpu") for group in self._groups]
        each = list(zip(filled, devices, strict=True))
        self._worker = [torch.zeros(size, device=device) for size, device in each]
        self._server = [torch.zeros(size // wire.size, device=device) for size, device in each]

    def mean(self, values: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Average each vector over the ranks, with errors that the next exchange makes up for. Collective.

        values: one for each parameter; None counts as zeros
        """
        left, found = iter(values), list[Tensor | None]()
        for index, group in enumerate(self._groups):
            mine = [next(left) for _ in group]
            vector = self._worker[index]  # the error of before, and then what is sent
            parts = vector[: self._sizes[index]].split([each.numel() for each in group])
            for part, value in zip(parts, mine, strict=True):
                if value is not None:
                    part.add_(value.reshape(-1))
            got = self._sent(index, vector)[: self._sizes[index]].split([each.numel() for each in group])
            found += [None if own is None else part.view_as(own) for part, own in zip(got, mine, strict=True)]
        return found

    def state(self) -> dict[str, Tensor]:
        """The compression errors of this rank, by group."""
        named = (("worker_error", self._worker), ("server_error", self._server))
        return {f"{name}.{index}": error for name, errors in named for index, error in enumerate(errors) if len(error)}

    def load(self, stored: Sequence[Mapping[str, Tensor]]) -> None:
        """Take up the errors that a run saved.

        stored: one `state()` for each rank of that run. With as many ranks as now, each takes its own; otherwise all
            take the same sum.

        Raises CheckpointError for errors of a run without `compatibility: deepspeed`.
        """
        for index, size in enumerate(self._sizes):
            names = f"worker_error.{index}", f"server_error.{index}"
            if size and not all(name in each for each in stored if each for name in names):
                raise CheckpointError(
                    "the compression errors are not those of compatibility: deepspeed",
                    hint="set `compatibility` as the run had it, or begin with finetune: true",
                )
            if not size:
                continue
            if len(stored) == self._wire.size:
                for errors, name in zip((self._worker, self._server), names, strict=True):
                    errors[index].copy_(stored[self._wire.rank][name])
            else:
                workers = torch.stack([each[names[0]][:size] for each in stored]).mean(0)
                self._worker[index][:size] = workers + torch.cat([each[names[1]] for each in stored])[:size]

    def _sent(self, index: int, vector: Tensor) -> Tensor:
        """Exchange a vector and return what arrives; what is lost stays in the vector."""
        wire = self._wire
        if wire.size == 1 or not len(vector):
            got = vector.clone()
            vector.zero_()
            return got
        for_me = wire.swap(_packed(vector, wire.size))
        server = self._server[index]
        server += decompress(for_me).mean(0)
        return decompress(wire.gather(_packed(server, 1)[0])).view(-1)


def _packed(vector: Tensor, parts: int) -> Tensor:
    """Pack a vector with one scale for all parts, and leave in it what packing loses. Returns uint8 [parts, n / 8 + 4].

    vector: fp32 [parts * n], changed in place
    """
    scale = vector.norm() / vector.numel() ** 0.5
    packed = pack_signs(vector.view(parts, -1), scale.repeat(parts, 1))
    vector -= decompress(packed).view(-1)
    return packed

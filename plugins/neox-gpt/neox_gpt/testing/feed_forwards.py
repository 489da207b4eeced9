"""The check of a feed-forward against `neox_gpt.api.FeedForward`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from neox_author.testing.clauses import clauses, hold
from neox_author.testing.plugins import build
from torch import Tensor, nn
from torch.nn import functional as f

from neox_core.hooks.component import load_path
from neox_core.parallel.tensor import ALONE, TensorParallel
from neox_gpt.contracts import FeedForwardShape, FeedForwardSize
from neox_gpt.testing.layer_clauses import (
    check_accumulation,
    check_calls,
    check_finite_differences,
    check_no_wait,
    check_recomputed,
    random,
)
from neox_gpt.testing.ranks import cuts_of, draw, gradients, hold_same, on_rank, run_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from neox_core.hooks.catalog import Catalog

BATCH, SEQ, HIDDEN, INNER = 3, 4, 16, 32
WHAT = "a feed-forward"


@clauses
def check_feed_forward(catalog: Catalog, name: str, **settings: Any) -> None:
    """Raises AssertionError naming the clause of `neox_gpt.api.FeedForward` that the feed-forward breaks, and the first
    tensor that differs.

    It is run whole, on two tensor-parallel ranks, and on two with sequence parallelism; the ranks are threads.
    """
    entry = catalog.find("feed forward", name)
    target, built, path = entry.load(), build(entry, **settings), entry.component.planner
    for gated in (False, True):
        shape = FeedForwardShape(HIDDEN, INNER, bias=not gated, gated=gated, layer=1)
        activation = _Gate() if gated else _Plain()
        make: Callable[..., Any] = partial(_make, target, shape, activation, built)
        size = None if path is None else load_path(path)(shape, built)
        _check_whole(make, size)
        if isinstance(size, FeedForwardSize) and not size.one_rank_only:
            for sequence_parallel in (False, True):
                _check_split(make, size, sequence_parallel=sequence_parallel)
    wide = FeedForwardShape(512, 512)
    check_accumulation(_make(target, wide, _Plain(), built), _run, random(2, 8, 512))


class _Plain:
    gated = False

    def __call__(self, x: Tensor) -> Tensor:
        return f.gelu(x)


class _Gate:
    gated = True

    def __call__(self, x: Tensor) -> Tensor:
        value, gate = x.chunk(2, -1)
        return value * f.silu(gate)


def _make(target: Any, shape: FeedForwardShape, activation: Any, settings: Any, tensor: TensorParallel = ALONE) -> Any:
    return target(shape, activation, tensor, settings)


def _run(module: nn.Module, x: Tensor) -> Tensor:
    result: Tensor = module(x)
    return result


def _check_whole(make: Callable[..., Any], size: Any) -> None:
    module, x = make(), random(BATCH, SEQ, HIDDEN)
    hold(isinstance(module, nn.Module), f"{WHAT} is a torch.nn.Module")
    hold(isinstance(getattr(module, "flops_per_token", None), int), f"{WHAT} has `flops_per_token`, a whole number")
    _check_size(module, size)
    draw(module.double())
    check_calls(module, _run, x, WHAT)
    whole = module(x)
    alone = torch.stack([torch.stack([module(token[None, None])[0, 0] for token in sample]) for sample in x])
    hold_same("the result for a token depends on that token alone", {"the result": alone}, {"the result": whole})
    last = getattr(module, "last_bias", None)
    if hasattr(module, "last_bias"):
        added = module(x, bias=False) + (0 if last is None else last)
        hold_same("with bias=False `last_bias` is left out", {"the result": added}, {"the result": whole})
    hold(bool(module(x * 0).isfinite().all()), "zeros give finite values")
    check_finite_differences(module, _run, x)
    check_recomputed(module, _run, x)
    check_no_wait(module, _run, x)


def _check_size(module: nn.Module, size: Any) -> None:
    if size is None:
        return
    hold(isinstance(size, FeedForwardSize), "the planner gives a FeedForwardSize")
    own = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    hold(dict(size.shapes) == own, f"the planner tells the shape of each parameter: {own}, and not {size.shapes}")


def _check_split(make: Callable[..., Any], size: FeedForwardSize, *, sequence_parallel: bool) -> None:
    """The numbers of two ranks are those of one."""
    x, weight = random(BATCH, SEQ, HIDDEN), random(BATCH, SEQ, HIDDEN, seed=5)
    alone = draw(make().double())
    whole = gradients(alone, alone, x, weight)
    clause = "TP 2 equals TP 1" + (" with sequence parallelism" if sequence_parallel else "")

    def rank(tensor: TensorParallel) -> None:
        module = make(tensor=tensor).double()
        cuts, mine = cuts_of(module), tensor.positions(SEQ)
        split = {name: cut.dim for name, cut in cuts.items()}
        hold(split == dict(size.split), f"the planner tells what is split, and where: {split}, not {dict(size.split)}")
        same = module.flops_per_token == alone.flops_per_token
        hold(same, f"`flops_per_token` counts all tensor ranks: {alone.flops_per_token}, not {module.flops_per_token}")
        draw(module, tensor)
        got = gradients(module, module, x[:, mine], weight[:, mine])
        hold_same(clause, got, on_rank(whole, tensor, cuts, SEQ))

    run_ranks(2, rank, sequence_parallel=sequence_parallel)

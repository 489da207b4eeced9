"""The check of a feed-forward against `neox_gpt.api.FeedForward`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from neox_author.testing.clauses import clauses, hold, not_applicable
from neox_author.testing.in_layouts import check_in_layouts, whole_name
from neox_author.testing.plugins import build
from neox_author.testing.ranks import hold_same, run_ranks
from torch import Tensor, nn
from torch.nn import functional as f

from neox_core.hooks.component import load_path
from neox_core.parallel.tensor import ALONE, TensorParallel
from neox_gpt.auxiliary import LOSSES, METRICS, divided, fault_of, names_of
from neox_gpt.contracts import FeedForwardShape, FeedForwardSize
from neox_gpt.testing.layer_clauses import (
    DECODER,
    check_accumulation,
    check_added,
    check_calls,
    check_finite_differences,
    check_modes,
    check_names,
    check_no_wait,
    check_recomputed,
    random,
)
from neox_gpt.testing.ranks import cuts_of, draw, gradients, on_rank, tensor_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from neox_core.hooks.catalog import Catalog

BATCH, SEQ, HIDDEN, INNER = 3, 4, 16, 32
WHAT = "a feed-forward"


@clauses
def check_feed_forward(catalog: Catalog, name: str, *, trained: bool = False, **settings: Any) -> None:
    """Raises AssertionError naming the clause of `neox_gpt.api.FeedForward` that the feed-forward breaks, and the first
    tensor that differs.

    It is run whole, on two tensor-parallel ranks, and on two with sequence parallelism; the ranks are threads.
    Then it is in all layers of a small decoder, in several layouts. trained: also train that decoder in them, see
    `neox_author.testing.in_layouts`.
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
    wide = _make(target, FeedForwardShape(512, 512), _Plain(), built)
    check_accumulation(wide.train(not _is_batched(wide)), _run, random(2, 8, 512))
    check_in_layouts(catalog, "architecture", DECODER, trained=trained, mlp_type=whole_name(entry), **settings)


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


def _run(module: nn.Module, x: Tensor) -> Any:
    """The result; of a feed-forward that gives losses besides, the result and these, in float64."""
    result = module(x)
    if not names_of(module) or not isinstance(result, tuple):
        return result
    hold(len(result) == 2, f"{WHAT} with `{LOSSES}` or `{METRICS}` gives (tensor, numbers)")
    fault = fault_of(module, result[1])
    hold(not fault, f"{WHAT} {fault}")
    return result[0], {name: result[1][name].double() for name in getattr(module, LOSSES, ())}


def _is_batched(module: nn.Module) -> bool:
    return bool(getattr(module, "depends_on_batch", False))


def _check_auxiliary(module: nn.Module, x: Tensor) -> None:
    """The numbers beside the tensor: that they are there, in fp32 or wider, and of a size that can be trained on."""
    names = [each for attribute in (LOSSES, METRICS) for each in getattr(module, attribute, ())]
    hold(all(isinstance(each, str) and each.isidentifier() for each in names), f"`{LOSSES}` and `{METRICS}` are names")
    hold(len(names) == len({*names}), "a name is that of a loss or of a metric")
    if not names:
        not_applicable("auxiliary losses count once", f"it has no `{LOSSES}` and no `{METRICS}`")
        return
    result = module.bfloat16()(x.bfloat16())
    module.double()
    hold(isinstance(result, tuple), f"{WHAT} with `{LOSSES}` or `{METRICS}` gives (tensor, numbers)")
    hold(not (fault := fault_of(module, result[1])), f"{WHAT} {fault}")
    for name, value in result[1].items():
        hold(value.dtype in (torch.float32, torch.float64), f"{name} is in fp32 or wider, whatever the input is in")
        hold(bool(value.isfinite()), f"{name} is finite")
    for name in getattr(module, LOSSES, ()):
        twice = [module(part)[1][name] for part in (x, torch.cat((x, x)))]
        same = bool((twice[0] - twice[1]).abs() <= 1e-6 * (1 + twice[0].abs()))
        hold(same, f"{name} is a mean over tokens: the same samples twice give the same loss")


def _check_whole(make: Callable[..., Any], size: Any) -> None:
    module, x = make(), random(BATCH, SEQ, HIDDEN)
    hold(isinstance(module, nn.Module), f"{WHAT} is a torch.nn.Module")
    hold(isinstance(getattr(module, "flops_per_token", None), int), f"{WHAT} has `flops_per_token`, a whole number")
    _check_size(module, size)
    check_names(module)
    draw(module.double())
    check_calls(module, _run, x, WHAT)
    _check_auxiliary(module, x)

    def tensor(given: Tensor) -> Tensor:
        return tensor_of(_run(module, given))

    whole = tensor(x)
    batched = _is_batched(module)
    module.train(not batched)
    together = tensor(x)
    alone = torch.stack([torch.stack([tensor(token[None, None])[0, 0] for token in sample]) for sample in x])
    clause = "the result for a token depends on that token alone" + (", in evaluation mode" if batched else "")
    hold_same(clause, {"the result": alone}, {"the result": together})
    module.train()
    if not batched:
        check_modes(module, _run, x)
    last = getattr(module, "last_bias", None)
    if hasattr(module, "last_bias"):
        added = module(x, bias=False)
        added = (added[0] if isinstance(added, tuple) else added) + (0 if last is None else last)
        hold_same("with bias=False `last_bias` is left out", {"the result": added}, {"the result": whole})
    hold(bool(tensor(x * 0).isfinite().all()), "zeros give finite values")
    check_finite_differences(module, _run, x)
    check_added(module, _run, x)
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
    whole = gradients(alone, partial(_run, alone), x, weight)
    clause = "TP 2 equals TP 1" + (" with sequence parallelism" if sequence_parallel else "")

    def rank(tensor: TensorParallel) -> None:
        module = make(tensor=tensor).double()
        cuts, mine = cuts_of(module), tensor.positions(SEQ)
        split = {name: cut.dim for name, cut in cuts.items()}
        hold(split == dict(size.split), f"the planner tells what is split, and where: {split}, not {dict(size.split)}")
        same = module.flops_per_token == alone.flops_per_token
        hold(same, f"`flops_per_token` counts all tensor ranks: {alone.flops_per_token}, not {module.flops_per_token}")
        draw(module, tensor)

        def once(given: Tensor) -> Any:  # as the decoder: the gradients of a loss are added up over the ranks
            result = _run(module, given)
            if isinstance(result, Tensor):
                return result
            return result[0], {name: divided(loss, tensor.size) for name, loss in result[1].items()}

        got = gradients(module, once, x[:, mine], weight[:, mine])
        hold_same(clause, got, on_rank(whole, tensor, cuts, SEQ))

    run_ranks(2, rank, sequence_parallel=sequence_parallel)

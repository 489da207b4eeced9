"""Whose fault it is that a pass fails: the part that broke its contract, and not the block that meets its result.

A pass compares one shape and dtype for each sublayer. All else here runs after an exception alone, and finds in the
frames of its traceback what each part was given and gave.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from traceback import walk_tb
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from neox_core.errors import NeoxError, PluginError
from neox_core.hooks.component import cause_of
from neox_gpt.auxiliary import fault_of

if TYPE_CHECKING:
    from neox_core.plan.runfile import ComponentRef
    from neox_gpt.block import Block
    from neox_gpt.config.plan import GPTPlan
    from neox_gpt.shape import ModelShape

ALIKE = "its contract says that result and input have one shape and dtype"
FINITE = "its call, which raises nothing for finite input"


def require_alike(made: Tensor, like: Tensor) -> None:
    """Raises ValueError unless `made` has the shape and dtype of `like`: `fault_in` tells whose fault that is."""
    if made.shape != like.shape or made.dtype != like.dtype:
        raise ValueError(f"a part of the model gives {shown(made)} for {shown(like)}")


def fault_in(error: Exception, shape: ModelShape) -> PluginError | None:
    """The part of a planned model that made a pass fail with `error`, and its clause; None where none is known to."""
    from neox_gpt.block import Block  # which imports this module, as the other does
    from neox_gpt.embedding import Embedding

    # torch ends a segment that it computes again by an exception of its own
    if isinstance(error, NeoxError | MemoryError) or type(error).__module__ == "torch.utils.checkpoint":
        return None
    if shape.plan is None or "memory" in str(error):
        return None
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    try:
        for frame, inner in zip_longest(frames, frames[1:]):
            found = frame.f_locals
            if frame.f_code is Block.forward.__code__:
                failing = None if inner is None else inner.f_locals.get("self")
                _look_at_block(found["self"], shape.plan, found, failing, error)
            elif frame.f_code is Embedding.forward.__code__ and "rows" in found:
                _look_at_embedding(shape.plan, found, error)
            elif "before_last_norm" in found:
                _require(shape.plan.norm, found["normed"], found["before_last_norm"])
    except NeoxError as fault:
        return fault if isinstance(fault, PluginError) else None
    except Exception:  # noqa: BLE001 the error that is to be explained matters more
        return None
    return None


def _look_at_embedding(plan: GPTPlan, found: Mapping[str, Any], error: Exception) -> None:
    if "hidden" in found:
        _require(plan.position, found["hidden"], found["rows"], "from embed ")
    else:
        _require_silent(plan.position, error, found["rows"])


def _look_at_block(block: Block, plan: GPTPlan, found: Mapping[str, Any], failing: object, error: Exception) -> None:
    """Raises PluginError for the part of a block that broke its contract.

    found: what a pass had made when it ended. failing: the part in which it ended.
    """
    x, mixer, feed_forward = found["x"], plan.mixer(block.index), plan.feed_forward(block.index)
    if failing in (block.attention_norm, block.attention_post_norm, block.mlp_norm, block.mlp_post_norm):
        _require_silent(plan.norm, error, x)
    if "normed" in found:
        _require(plan.norm, found["normed"], x)
    if failing is block.attention:
        _look_at_rotation(plan, found["position"], found["scope"].prepared, x)
        _require_silent(mixer, error, found["normed"])
    if "attended" in found:
        _require(mixer, found["attended"], x)
    if "settled" in found:
        _require(plan.norm, found["settled"], x)
    if failing is block.mlp:
        _look_at_activation(plan, block.mlp, x)
        _require_silent(feed_forward, error, found["normed"])
    if "fed" in found:
        if block.auxiliary is not None and (said := fault_of(block.mlp, found["numbers"])):
            raise feed_forward.fault(said)
        if _is_unlike(found["fed"], x):
            _look_at_activation(plan, block.mlp, x)
        _require(feed_forward, found["fed"], x)
    if "settled_too" in found:
        _require(plan.norm, found["settled_too"], x)


def _look_at_rotation(plan: GPTPlan, position: Any, prepared: Any, x: Tensor) -> None:
    """Ask the position once more what a mixer has asked it, for as many tokens as it has prepared."""
    lengths = [each.shape[-2] for each in (prepared if isinstance(prepared, tuple | list) else [prepared]) if
               isinstance(each, Tensor) and each.dim() > 1]  # fmt: skip
    query = x.new_zeros(1, plan.num_attention_heads, lengths[0] if lengths else x.shape[1], plan.head_width)
    with torch.no_grad(), plan.position.blamed("rotate, which raises nothing"):
        rotated = position.rotate(query, query.clone(), prepared)
    if not isinstance(rotated, tuple | list) or len(rotated) != 2:
        raise plan.position.fault(f"rotate gives {shown(rotated)}, not a query and a key")
    for each in rotated:
        if not isinstance(each, Tensor) or each.shape[1:] != query.shape[1:] or _other_dtype(each, query):
            raise plan.position.fault(f"from rotate it gives {shown(each)}, not {shown(query)}: {ALIKE}")


def _look_at_activation(plan: GPTPlan, feed_forward: nn.Module, x: Tensor) -> None:
    """Ask the activation of a feed-forward once more, where the feed-forward keeps it."""
    for value in {id(each): each for module in feed_forward.modules() for each in _kept(module)}.values():
        width = x.shape[-1]
        given = x.new_zeros(*x.shape[:-1], 2 * width if value.gated else width)
        with torch.no_grad(), plan.activation.blamed(FINITE):
            made = value(given)
        _require_kernels(value, given, made, given[..., :width])
        _require(plan.activation, made, given[..., :width], f"of {shown(given)} ")


def _require_kernels(user: Any, given: Tensor, made: object, like: Tensor) -> None:
    """Raises PluginError for the kernels of a part that has made something unlike, and makes it right without them."""
    kernels = getattr(user, "kernels", None)
    if not kernels or not _is_unlike(made, like):
        return
    user.kernels = {}
    if not _is_unlike(user(given), like):
        op, kernel = next(iter(kernels.items()))
        package = kernel.__module__.partition(".")[0]
        said = f"a kernel of {op} in {package}: of {shown(given)} it gives {shown(made)}, not {shown(like)}: {ALIKE}"
        raise PluginError(said, hint=f"tell its author; kernels: {{{op}: reference}} computes without it")


def _kept(module: nn.Module) -> list[Any]:
    values = [*vars(module).values(), *module.children()]
    return [each for each in values if callable(each) and isinstance(getattr(each, "gated", None), bool)]


def _require(reference: ComponentRef, got: object, like: Tensor, what: str = "") -> None:
    if _is_unlike(got, like):
        raise reference.fault(f"{what}in a step it gives {shown(got)}, not {shown(like)}: {ALIKE}")


def _is_unlike(got: object, like: Tensor) -> bool:
    return not isinstance(got, Tensor) or got.shape != like.shape or _other_dtype(got, like)


def _other_dtype(got: Tensor, like: Tensor) -> bool:
    device = like.device.type
    narrow = {torch.get_autocast_dtype(device)} if torch.is_autocast_enabled(device) else set()
    return got.dtype not in {like.dtype, *narrow}


def _require_silent(reference: ComponentRef, error: Exception, given: Tensor) -> None:
    """Raises PluginError where the part's own code has raised `error`, given finite numbers."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    own = reference.target.partition(":")[0].partition(".")[0]
    if package == own != "neox_gpt" and bool(given.isfinite().all()):
        said = f"{reference.owner} failed in {FINITE}: {cause_of(error, reference.target)}"
        raise PluginError(said, hint=f"tell the author of {reference.plugin}; `neox --debug` shows the traceback")


def shown(value: object) -> str:
    """A value for messages: dtype and shape of a tensor, else its class."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return "None" if value is None else f"a {type(value).__name__}"

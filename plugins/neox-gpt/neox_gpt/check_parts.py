"""Calls each component of a model once, on small inputs, before the model is built from it.

A component that breaks its contract is then named with its plugin. Otherwise a step would fail elsewhere, or train
something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve
from torch import Tensor, nn

from neox_core.contracts.host import MOST_METRICS, TOO_MANY
from neox_core.errors import ConfigError
from neox_core.parallel.tensor import ALONE
from neox_gpt.attention.size import attention_flops
from neox_gpt.auxiliary import LOSSES, METRICS, auxiliary_of, fault_of, names_of
from neox_gpt.config.plan import SOFTMAX_ATTENTION
from neox_gpt.faults import shown
from neox_gpt.scope import Scope

if TYPE_CHECKING:
    from neox_core.parallel.context import BuildContext
    from neox_core.plan.runfile import ComponentRef
    from neox_gpt.auxiliary import Auxiliary
    from neox_gpt.config.plan import GPTPlan
    from neox_gpt.contracts import Activation, FeedForwardShape, MixerShape, PositionShape
    from neox_gpt.shape import ModelShape

FEW = 2**24
"""Weights of a feed-forward that is tried on a small input before the model is built."""
NONE = "none"
"""The position that is for models without positions."""
STAGES = ("embed", "prepare", "rotate", "score_bias")


def build_activation(reference: ComponentRef) -> Activation:
    """Build an activation. Raises PluginError for one that breaks `contracts.Activation`."""
    activation: Activation = reference.make()
    if not callable(activation) or not isinstance(getattr(activation, "gated", None), bool):
        raise reference.fault(f"makes {shown(activation)}, and an activation is called and has a truth value `gated`")
    return activation


def probe_parts(plan: GPTPlan, activation: Activation, shape: PositionShape, context: BuildContext) -> None:
    """Raises PluginError for a norm, an activation or a position that does not give what its contract says."""
    if context.device.type == "meta":  # a model for its shapes alone
        return
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        _probe_norm(plan.norm, plan.hidden_size, context)
        width = 8
        x = _ramp(1, 2, 2 * width if activation.gated else width).to(context.device, context.dtype)
        found = _called(plan.activation, activation, x)
        _require_like(plan.activation, f"of {shown(x)}", [found], [x[..., :width]])
        _probe_position(plan.position, shape, context)


def probe_feed_forwards(plan: GPTPlan, activation: Activation, shape: ModelShape) -> tuple[int, Auxiliary | None]:
    """The FLOPs per token of the feed-forwards of all layers, forward and backward, and what they give besides.

    Raises PluginError for one that is not a module, does not tell its FLOPs, gives another shape or dtype than its
    input's, or other numbers than it says; the last two are tried where its weights take little memory.
    """
    made: dict[int, Any] = {}
    for layer, block in enumerate(shape.layer_order):
        place = plan.place_of_feed_forward(layer)
        if place not in made:
            reference, told = plan.used_feed_forwards[place], (plan.feed_forward_shapes or {place: None})[place]
            made[place] = _probe_feed_forward(reference, activation, shape.feed_forward(block))
            _require_told(reference, made[place], told)
    of_layers = [made[plan.place_of_feed_forward(layer)] for layer in range(shape.num_layers)]
    return sum(each.flops_per_token for each in of_layers), auxiliary_of(of_layers)


def _probe_feed_forward(reference: ComponentRef, activation: Activation, shape: FeedForwardShape) -> Any:
    with torch.device("meta"):
        made = reference.make(shape, activation, ALONE)
    if not isinstance(made, nn.Module):
        raise reference.fault(f"makes {shown(made)}, not a torch.nn.Module")
    flops = getattr(made, "flops_per_token", None)
    if not isinstance(flops, int):
        raise reference.fault(f"its flops_per_token is {shown(flops)}, not a whole number")
    for attribute in (LOSSES, METRICS):
        names = getattr(made, attribute, ())
        if not isinstance(names, tuple) or not all(isinstance(each, str) for each in names):
            raise reference.fault(f"its {attribute} is {shown(names)}, not a tuple of names")
        if len(names) > MOST_METRICS:
            raise reference.fault(f"its {attribute} are {len(names):,} numbers: {TOO_MANY}")
    if sum(each.numel() for each in made.parameters()) <= FEW:
        with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
            real, x = _filled(reference.make(shape, activation, ALONE).float()), _ramp(1, 2, shape.hidden_size)
            found = _called(reference, real, x)
        if names_of(made):
            found, numbers = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
            if fault := fault_of(made, numbers):
                raise reference.fault(fault)
        _require_like(reference, f"of {shown(x)}", [found], [x])
    return made


def probe_mixers(plan: GPTPlan, shape: ModelShape, places: PositionShape) -> int | None:
    """The FLOPs per token of the mixers of all layers, forward and backward; None: all are softmax attention.

    Raises as `probe_feed_forwards`, and ConfigError for a position that nothing takes.
    """
    if plan.mixers is None or plan.mixer_facts is None:
        return None
    first: dict[int, int] = {}
    for block, layer in enumerate(plan.first_layers):
        first.setdefault(plan.place_of_mixer(layer), block)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), torch.device("cpu"):
        position = plan.position.make(evolve(places, max_positions=min(2, places.max_positions)))
        for place, block in first.items():
            made, facts = _probe_mixer(plan.mixers[place], position, shape.mixer(block)), plan.mixer_facts[place]
            _require_told(plan.mixers[place], made, facts.shapes, facts.norms)
        x = torch.zeros(1, 1, shape.hidden_size)
        taken = any(each.needs_positions for each in plan.mixer_facts) or plan.position.name == NONE
        if not taken and position.embed(x, torch.arange(1)) is x:
            what = f"pos-emb {plan.position.name} does nothing: no layer has a mixer that takes positions"
            raise ConfigError(what, hint=f"set pos-emb: {NONE}")
    flops = [plan.mixer_facts[plan.place_of_mixer(layer)].flops for layer in range(plan.num_layers)]
    for layer, block in enumerate(shape.layer_order):
        if plan.mixer(block).identity == SOFTMAX_ATTENTION.identity:  # whose windows are a layer's own
            flops[layer] = attention_flops(shape.mixer(block), shape.seq_length)
    return sum(flops)


def _require_told(
    reference: ComponentRef, made: Any, told: Mapping[str, tuple[int, ...]] | None, norms: Sequence[str] = ()
) -> None:
    """Raises PluginError for a module with other parameters than its planner has told. norms: of parts left out."""
    if told is None:
        return
    prefixes = tuple(f"{each}." for each in norms)
    own = {name: list(each.shape) for name, each in made.named_parameters() if not name.startswith(prefixes)}
    wanted = {name: list(each) for name, each in told.items()}
    if name := min((each for each in {**own, **wanted} if own.get(each) != wanted.get(each)), default=""):
        says = f"its planner tells {name} {wanted[name]}" if name in wanted else f"its planner does not tell {name}"
        has = f"has it as {own[name]}" if name in own else "has no such parameter"
        raise reference.fault(f"{says}, and its module {has}: its contract says that they tell the same")


def _probe_mixer(reference: ComponentRef, position: Any, shape: MixerShape) -> nn.Module:
    with torch.device("meta"):
        made = reference.make(shape, ALONE)
    if not isinstance(made, nn.Module):
        raise reference.fault(f"makes {shown(made)}, not a torch.nn.Module")
    if sum(each.numel() for each in made.parameters()) <= FEW:
        real, x = _filled(reference.make(shape, ALONE).float()), _ramp(1, 2, shape.hidden_size)
        found = _called(reference, real, x, position, Scope(position.prepare(torch.arange(2), torch.float32)), 0)
        _require_like(reference, f"of {shown(x)}", [found], [x])
    return made


def _probe_norm(reference: ComponentRef, dim: int, context: BuildContext) -> None:
    norm, x = _module(reference, context, dim), _ramp(1, 2, dim).to(context.device, context.dtype)
    found = _called(reference, norm, x)
    _require_like(reference, f"of {shown(x)}", [found], [x])


def _probe_position(reference: ComponentRef, shape: PositionShape, context: BuildContext) -> None:
    position = _module(reference, context, shape)
    lacks = [name for name in STAGES if not callable(getattr(position, name, None))]
    if lacks:
        raise reference.fault(f"makes {shown(position)}, which has no method {lacks[0]}")
    tokens = min(2, shape.max_positions)
    positions = torch.arange(tokens, device=context.device)
    hidden = _zeros(context, 1, tokens, shape.hidden_size)
    query = _zeros(context, 1, shape.num_heads, tokens, shape.head_dim)
    with reference.blamed():
        embedded = position.embed(hidden, positions)
        prepared = position.prepare(positions, context.dtype)
        rotated = position.rotate(query, query.clone(), prepared)
        bias = position.score_bias(prepared)
    _require_like(reference, "from embed", [embedded], [hidden])
    if not isinstance(rotated, tuple | list) or len(rotated) != 2:
        raise reference.fault(f"rotate gives {shown(rotated)}, not a query and a key")
    _require_like(reference, "from rotate", rotated, [query, query])
    if bias is not None:
        _probe_bias(reference, bias, positions, shape.num_heads)


def _probe_bias(reference: ComponentRef, bias: Any, positions: Tensor, num_heads: int) -> None:
    if not callable(bias):
        raise reference.fault(f"score_bias gives {shown(bias)}, neither a function nor None")
    heads = torch.arange(num_heads, device=positions.device)[:, None, None]
    wanted = (num_heads, len(positions), len(positions))
    with reference.blamed():
        found = bias(heads, positions[:, None], positions)
    fits = isinstance(found, Tensor) and found.is_floating_point()
    if not fits or torch.broadcast_shapes(found.shape, wanted) != wanted:
        raise reference.fault(f"its score_bias is {shown(found)}, and does not broadcast to {list(wanted)}")


def _module(reference: ComponentRef, context: BuildContext, shape: object) -> Any:
    made = reference.make(shape)
    if not isinstance(made, nn.Module):
        raise reference.fault(f"makes {shown(made)}, not a torch.nn.Module")
    return _filled(made.to(context.device, context.dtype))


def _called(reference: ComponentRef, part: Any, x: Tensor, *rest: Any) -> Any:
    """What a part gives for `x`. Raises PluginError where it changes its input or draws random numbers.

    Numbers are looked at where there are some, which a fake tensor has not: before the first step a wait for the device
    costs nothing.
    """
    before, state = x.clone(), torch.get_rng_state()
    with reference.blamed("its call, which raises nothing"):
        found = part(x, *rest)
    if _has_numbers(x) and not torch.equal(x, before):
        raise reference.fault("changes its input: its contract says that a call leaves the input as it is")
    if not torch.equal(torch.get_rng_state(), state):
        raise reference.fault("draws from torch's own generator: its contract says that two calls give the same bits")
    return found


def _require_like(reference: ComponentRef, what: str, found: Sequence[object], wanted: Sequence[Tensor]) -> None:
    for got, like in zip(found, wanted, strict=True):
        if not isinstance(got, Tensor) or (got.shape, got.dtype) != (like.shape, like.dtype):
            clause = "its contract says that result and input have one shape, dtype and device"
            raise reference.fault(f"{what} it gives {shown(got)}, not {shown(like)}: {clause}")
        if _has_numbers(got) and not bool(got.isfinite().all()):
            raise reference.fault(f"{what} it gives numbers that are not finite, and its contract says finite ones")


def _has_numbers(x: Tensor) -> bool:
    return type(x) is Tensor and not x.is_meta


def _zeros(context: BuildContext, *size: int) -> Tensor:
    return torch.zeros(size, device=context.device, dtype=context.dtype)


def _ramp(*size: int) -> Tensor:
    """Numbers from -1 to 1, in rising order."""
    return torch.linspace(-1, 1, prod(size)).reshape(size)


def _filled(module: Any) -> Any:
    """The module; what it has not drawn would be any numbers, and not finite ones."""
    for parameter in module.parameters():
        parameter.fill_(0.01)
    return module

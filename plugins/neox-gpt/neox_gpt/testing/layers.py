"""Checks of norms, activations and positions against their contracts in `neox_gpt.api`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from neox_author.testing.clauses import clauses, has, hold, not_applicable
from neox_author.testing.plugins import build
from torch import Tensor, nn

from neox_core.hooks.component import load_path
from neox_gpt.contracts import PositionShape, PositionSize

if TYPE_CHECKING:
    from neox_core.hooks.catalog import Catalog

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@clauses
def check_norm(catalog: Catalog, name: str, **settings: Any) -> None:
    """Raises AssertionError naming the clause of `neox_gpt.api.Norm` that the norm breaks."""
    make = _maker(catalog, "norm", name, settings)
    for dim in (6, 64):
        norm = _wiggled(make(dim), seed=dim)
        _check_module(norm, "a norm")
        _check_told(_planner(catalog, "norm", name, settings), norm, dim)
        x = _random(4, 5, dim) * 3 + 1
        wide = _tensor(norm.double()(x.clone()), "a norm")
        hold(wide.shape == x.shape, f"[..., dim] -> [..., dim]: {tuple(x.shape)} became {tuple(wide.shape)}")
        hold(norm(x[0, 0].clone()).shape == (dim,), "any number of leading dimensions, none too")
        alone = torch.stack([torch.stack([norm(row.clone()) for row in sample]) for sample in x])
        hold(_near(alone, wide, 1e-9), "statistics are taken over the last dimension only")
        for dtype in DTYPES:
            _check_call(norm.to(dtype), (x * 0 + 1).to(dtype).normal_(generator=_generator(1)), "a norm")
        mixed = norm.float()(x.bfloat16())
        hold(mixed.dtype == torch.bfloat16, "same dtype: bfloat16 in with fp32 parameters gives bfloat16")
        zeros = torch.zeros(3, dim, dtype=torch.float64, requires_grad=True)
        out = norm.double()(zeros)
        (gradient,) = torch.autograd.grad(out.sum(), zeros)
        hold(bool(out.isfinite().all() and gradient.isfinite().all()), "zeros give finite values and gradients")
        _check_gradient(norm.double(), x[:2, :2])
    _check_statistics(make)


@clauses
def check_activation(catalog: Catalog, name: str, **settings: Any) -> None:
    """Raises AssertionError naming the clause of `neox_gpt.api.Activation` that the activation breaks."""
    activation = _maker(catalog, "activation", name, settings)()
    hold(callable(activation), "an activation is called")
    hold(isinstance(getattr(activation, "gated", None), bool), "an activation has `gated`, which is True or False")
    planner = _planner(catalog, "activation", name, settings)
    hold(planner is None or planner() is activation.gated, "the planner tells whether it is gated")
    hold(
        not (isinstance(activation, nn.Module) and activation.state_dict()),
        "an activation has no parameters and no state",
    )
    width = 6
    inputs = 2 * width if activation.gated else width
    x = _random(3, 4, inputs) * 2
    before = _tensor(activation(x.clone()), "an activation")
    hold(
        before.shape == (3, 4, width),
        f"{'[..., 2 * width]' if activation.gated else '[..., width]'} -> [..., width]: "
        f"{tuple(x.shape)} became {tuple(before.shape)}",
    )
    given = x[0, 0].clone().requires_grad_()
    out = activation(given)
    jacobian = torch.stack([torch.autograd.grad(one, given, retain_graph=True)[0] for one in out])  # [width, inputs]
    own = torch.eye(width, dtype=torch.bool)
    hold(
        bool((jacobian.masked_fill(torch.cat((own, own), 1) if activation.gated else own, 0) == 0).all()),
        "elementwise: an output looks at the input of its own place, and its gate if it has one",
    )
    if activation.gated:
        value, gate = x[..., :width], x[..., width:]
        tripled = activation(torch.cat((value * 3, gate), -1))
        hold(_near(tripled, before * 3, 1e-9), "the value is the first half: the output is proportional to it")
    for dtype in DTYPES:
        _check_call(activation, x.to(dtype), "an activation")
        large = activation(torch.full((2, inputs), -30.0, dtype=dtype))
        hold(bool(large.isfinite().all()), f"finite far from 0, in {dtype}")
        exact, got = activation(x.to(dtype).double()), activation(x.to(dtype)).double()
        error = ((got - exact).abs().amax() / exact.abs().amax()).item()
        hold(error <= 4 * torch.finfo(dtype).eps, f"the numbers of float64, rounded: off by {error:.1e} in {dtype}")
    activation(x * 5)
    hold(torch.equal(activation(x.clone()), before), "no state: an earlier call changes no later one")
    _check_gradient(activation, x[:1, :2])


@clauses
def check_position(catalog: Catalog, name: str, **settings: Any) -> None:
    """Raises AssertionError naming the clause of `neox_gpt.api.Position` that the position breaks."""
    make = _maker(catalog, "position", name, settings)
    shape = PositionShape(hidden_size=64, num_heads=4, head_dim=16, max_positions=48)
    batch, seq = 2, 12
    position = _drawn(make(shape))
    _check_module(position, "a position")
    planner = _planner(catalog, "position", name, settings)
    _check_told(planner, position, shape)
    has(position, "a position", "embed", "prepare", "rotate", "score_bias")
    hidden = _random(batch, seq, shape.hidden_size)
    query, key = (_random(batch, shape.num_heads, seq, shape.head_dim, seed=seed) for seed in (1, 2))
    positions = torch.arange(seq)

    for dtype in DTYPES:
        cast: Any = position.to(dtype)
        _check_call(partial(_embedded, cast, positions), hidden.to(dtype), "`embed`")
        turned = _rotate(cast, query.to(dtype), key.to(dtype), positions)
        for got, given in zip(turned, (query, key), strict=True):
            hold(got.shape == given.shape, f"`rotate` keeps shapes: {tuple(given.shape)} became {tuple(got.shape)}")
            hold(got.dtype == dtype, f"`rotate` keeps dtypes: {dtype} became {got.dtype}")
    position = position.double()
    _check_embeds(planner, shape, lambda x: position.embed(x, positions), hidden)

    def everything(at: Tensor, part: slice = slice(None)) -> tuple[Tensor, ...]:
        return (
            position.embed(hidden[:, part].clone(), at),
            *_rotate(position, query[:, :, part], key[:, :, part], at),
        )

    whole = everything(positions)
    hold(_all(torch.equal, everything(positions), whole), "deterministic: two calls give the same bits")
    by_sample = everything(positions.expand(batch, seq))
    hold(_all(_near, by_sample, whole, 1e-6), "positions [seq] and [batch, seq] are one thing")
    tail = everything(positions[7:], slice(7, None))
    full = (whole[0][:, 7:], whole[1][:, :, 7:], whole[2][:, :, 7:])
    hold(_all(_near, tail, full, 1e-6), "`positions` says where a token is: a tail alone, with its offset, is the same")
    mixed = torch.stack((positions, positions + 9))
    rows = [everything(at) for at in mixed]
    apart = tuple(torch.stack([row[part][index] for index, row in enumerate(rows)]) for part in range(3))
    hold(_all(_near, everything(mixed), apart, 1e-6), "each sample has its own positions where they are [batch, seq]")

    last = everything(torch.tensor([shape.max_positions - 1]), slice(0, 1))
    hold(all(bool(part.isfinite().all()) for part in last), "every position below max_positions has a place")
    one = everything(positions[7:8], slice(7, 8))
    alone = (whole[0][:, 7:8], whole[1][:, :, 7:8], whole[2][:, :, 7:8])
    hold(_all(_near, one, alone, 1e-6), "one token with its position, as in a cached generation, is the same")
    packed = everything(torch.cat((positions[:5], positions[: seq - 5])))
    first, second = everything(positions[:5], slice(0, 5)), everything(positions[: seq - 5], slice(5, None))
    joined = tuple(torch.cat(both, 1 if part == 0 else 2) for part, both in enumerate(zip(first, second, strict=True)))
    hold(_all(_near, packed, joined, 1e-6), "positions may begin again at 0 within a sample: documents lie in it")
    share = _turned(position, query[:, 1:3], key[:, 1:2], positions)
    wanted = (whole[1][:, 1:3], whole[2][:, 1:2])
    hold(_all(_near, share, wanted, 1e-6), "`rotate` treats heads alike: a rank has a share, a key may have fewer")

    scores = whole[1] @ whole[2].transpose(2, 3)
    moved_query, moved_key = _rotate(position, query, key, positions + 20)
    moved = moved_query @ moved_key.transpose(2, 3)
    hold(_near(moved, scores, 1e-5), "`rotate` tells distance: moving all positions leaves the scores")
    _check_bias(position, shape.num_heads)
    _check_gradient(lambda x: position.embed(x, positions[:3]), hidden[:1, :3])
    _check_gradient(lambda x: _rotate(position, x, x, positions[:3])[0], query[:1, :1, :3])


def _check_bias(position: Any, heads: int) -> None:
    """`score_bias` as the paths of attention call it: rows of queries at once, and one score alone."""
    positions = torch.arange(12)
    bias = position.score_bias(position.prepare(positions, torch.float64))
    if bias is None:
        not_applicable("`score_bias` gives a function, or None", "it adds no bias")
        return
    head, query, key = torch.arange(heads)[:, None, None], positions[:, None], positions
    seen = key <= query

    hold(callable(bias), "`score_bias` gives a function, or None")

    def table(shift: int) -> Tensor:
        found = _tensor(bias(head, query + shift, key + shift), "what `score_bias` gives")
        fits = found.dim() <= 3 and all(
            one in (1, all_) for one, all_ in zip(found.shape[::-1], (12, 12, heads), strict=False)
        )
        hold(
            found.is_floating_point() and fits,
            f"`score_bias` broadcasts with its arguments: they make {(heads, 12, 12)}, it is {tuple(found.shape)}",
        )
        return found.expand(heads, 12, 12).masked_fill(~seen, 0)

    whole = table(0)
    hold(bool(whole.isfinite().all()), "`score_bias` is finite where the key is not ahead of the query")
    hold(_near(table(20), whole, 1e-6), "`score_bias` tells distance: moving all positions leaves it")
    for row, column in ((11, 3), (5, 5), (7, 0)):
        alone = torch.stack([bias(*torch.tensor((one, row, column)).unbind()).reshape(()) for one in range(heads)])
        hold(_near(alone, whole[:, row, column], 1e-9), "`score_bias` of one score alone is that of the rows")


def _embedded(position: Any, positions: Tensor, hidden: Tensor) -> Any:
    return position.embed(hidden, positions)  # by place, as the decoder calls it


def _rotate(position: Any, query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """`rotate` as attention calls it: on views of one fused tensor, which must come out as it went in."""
    fused = torch.stack((query, key), dim=2)
    before = fused.clone()
    turned = _turned(position, fused[:, :, 0], fused[:, :, 1], positions)
    hold(torch.equal(fused, before), "`rotate` leaves its inputs as they are")
    return turned


def _turned(position: Any, query: Tensor, key: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    turned = position.rotate(query, key, position.prepare(positions, query.dtype))
    pair = isinstance(turned, tuple | list) and len(turned) == 2 and all(isinstance(each, Tensor) for each in turned)
    hold(pair, "`rotate` gives a query and a key")
    return turned[0], turned[1]


def _planner(catalog: Catalog, kind: str, name: str, settings: dict[str, Any]) -> Callable[..., Any] | None:
    """The component's planner with its settings; None where it has none."""
    entry = catalog.find(kind, name)
    if entry.component.planner is None:
        not_applicable("the planner tells what the host needs to know", "it has no planner")
        return None
    plan, built = load_path(entry.component.planner), build(entry, **settings)
    return lambda *arguments: plan(*arguments, built)


def _check_told(planner: Callable[..., Any] | None, module: nn.Module, size: Any) -> None:
    if planner is not None:
        own = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
        said = planner(size)
        told = dict(said.shapes) if isinstance(said, PositionSize) else said
        hold(told == own, f"the planner tells the shape of each parameter: {own}, and not {told}")


def _check_embeds(planner: Callable[..., Any] | None, shape: Any, embed: Any, hidden: Tensor) -> None:
    """What a planner tells of the embeddings, where it tells of them."""
    told = None if planner is None else planner(shape)
    if isinstance(told, PositionSize) and not told.embeds:
        hold(torch.equal(embed(hidden), hidden), "with `embeds` False `embed` returns its input")


def _maker(catalog: Catalog, kind: str, name: str, settings: dict[str, Any]) -> Callable[..., Any]:
    entry = catalog.find(kind, name)
    target, built = entry.load(), build(entry, **settings)
    return lambda *args: target(*args, built)


def _check_module(module: Any, what: str) -> None:
    hold(isinstance(module, nn.Module), f"{what} is a torch.nn.Module")
    declared = getattr(module, "no_weight_decay", None)
    if not isinstance(declared, frozenset):
        raise AssertionError("`no_weight_decay` is a frozenset of parameter names")
    own = {name for name, _ in module.named_parameters(recurse=False)}
    hold(declared <= own, f"`no_weight_decay` names the module's own parameters: {sorted(declared - own)} are not")


def _check_call(function: Callable[[Tensor], Tensor], x: Tensor, what: str) -> None:
    """Dtype kept, input left alone, the same bits twice; looked at with training's dropout on and off alike."""
    given = x.clone()
    first = _tensor(function(given), what)
    hold(torch.equal(given, x), f"{what} leaves its input as it is")
    hold(first.dtype == x.dtype, f"same dtype: {x.dtype} became {first.dtype}")
    hold(torch.equal(function(given), first), f"{what} is deterministic: two calls give the same bits")


def _tensor(value: Any, what: str) -> Tensor:
    if not isinstance(value, Tensor):
        raise AssertionError(f"{what} gives a tensor, not {'None' if value is None else f'a {type(value).__name__}'}")
    return value


def _check_statistics(make: Callable[..., Any]) -> None:
    """Half precision in, compared with fp64 on the very same numbers: only the result's rounding may differ."""
    dim = 512
    for dtype, scale in ((torch.float16, 400.0), (torch.bfloat16, 400.0), (torch.bfloat16, 1e-3)):
        x = (_random(8, dim) * scale + scale).to(dtype)
        exact = make(dim).double()(x.double())
        got = make(dim).to(dtype)(x).double()
        error = ((got - exact).abs().amax() / exact.abs().amax()).item()
        hold(error < 2 * torch.finfo(dtype).eps, f"statistics in fp32 or better: off by {error:.1e} in {dtype}")


def _check_gradient(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    given = x.detach().clone().requires_grad_()
    same = torch.autograd.gradcheck(function, (given,), fast_mode=True, raise_exception=False)
    hold(same, "the gradient is that of the function, in fp64 for an input in fp64")


def _wiggled(module: Any, seed: int) -> Any:
    """Parameters away from where they start, so that none can be forgotten unseen."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=_generator(seed)) * 0.1)
    return module


def _drawn(module: Any) -> Any:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0.0, 0.5, generator=_generator(9))
    return module


def _random(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, dtype=torch.float64, generator=_generator(seed))


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _near(got: Tensor, wanted: Tensor, tolerance: float) -> bool:
    return got.shape == wanted.shape and bool((got - wanted).abs().amax() <= tolerance * (1 + wanted.abs().amax()))


def _all(same: Callable[..., bool], got: tuple[Tensor, ...], wanted: tuple[Tensor, ...], *args: float) -> bool:
    return all(same(one, other, *args) for one, other in zip(got, wanted, strict=True))

"""The check of an optimizer against `neox_core.contracts.optim.Optimizer`."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from neox_author.testing.clauses import clauses, hold, not_applicable
from neox_author.testing.plugins import build

if TYPE_CHECKING:
    from neox_core.hooks.catalog import Catalog
    from neox_core.hooks.component import Component

SHARES = "zero_stages names 1 beside whole_parameters, so a parameter moves alike when others leave the groups"
SLICES = "zero_stages names a sharded stage, so flat slices of the parameters give the same update"
SHAPES = ((4, 6), (7,), (3, 2, 2))
STEPS = 12

Make = Callable[..., torch.optim.Optimizer]
Groups = list[dict[str, Any]]


@clauses
def check_optimizer(catalog: Catalog, name: str, **settings: Any) -> None:
    """Raises AssertionError naming the clause of `contracts.Optimizer` that the optimizer breaks."""
    entry = catalog.find("optimizer", name)
    target = entry.load()

    def make(groups: Groups, **changed: Any) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = target(groups, build(entry, **{**settings, **changed}))
        return optimizer

    made = target([{"params": _weights(), "weight_decay": 0.0}], build(entry, **settings))
    hold(isinstance(made, torch.optim.Optimizer), f"it is a torch.optim.Optimizer, not a {type(made).__name__}")
    rates = [group.get("lr") for group in made.param_groups]
    hold(all(isinstance(rate, float | int | Tensor) for rate in rates), "its groups have an `lr`, which is a number")
    fields = {field.name for field in getattr(entry.component.settings, "__attrs_attrs__", ())}
    _check_step(make)
    _check_determinism(make)
    _check_resume(make)
    _check_groups(make, fields)
    _check_state(make, entry.component, counted=set(settings) <= {"lr"})
    stages, whole = entry.component.zero_stages, entry.component.whole_parameters
    if whole and 1 in stages:
        _check_shares(make)
    else:
        not_applicable(SHARES, f"zero_stages is {stages}, whole_parameters {whole}")
    if any(stage > int(whole) for stage in stages):
        _check_slices(make)
    else:
        not_applicable(SLICES, f"zero_stages is {stages}, whole_parameters {whole}")


def _check_step(make: Make) -> None:
    weights = _weights()
    optimizer = make(_group(weights))
    hold(isinstance(optimizer, torch.optim.Optimizer), "it is a torch.optim.Optimizer")
    idle = weights[-1]
    start = [weight.detach().clone() for weight in weights]
    for step in range(STEPS):
        gradients = _gradients(weights, step)
        _give(weights[:-1], gradients)
        held = [weight.grad for weight in weights]
        optimizer.step()
        hold(
            all(weight.grad is grad for weight, grad in zip(weights, held, strict=True)), "step() leaves .grad in place"
        )
        same = all(torch.equal(weight.grad, grad) for weight, grad in zip(weights[:-1], gradients, strict=False))
        hold(same, "step() leaves the gradients as they are")
    hold(torch.equal(idle, start[-1]), "a parameter without a gradient is skipped: its weight stays")
    moved = all(not torch.equal(weight, first) for weight, first in zip(weights[:-1], start, strict=False))
    hold(moved, "step() moves the weights that have a gradient")
    hold(all(bool(weight.isfinite().all()) for weight in weights), "finite gradients leave finite weights")
    _give([idle], _gradients([idle], 0))
    optimizer.step()
    hold(not torch.equal(idle, start[-1]), "a parameter whose first gradient comes late is moved by it")
    optimizer.zero_grad()
    hold(all(weight.grad is None for weight in weights), "zero_grad() lets go of the gradients")


def _check_determinism(make: Make) -> None:
    runs = []
    for seed in (1, 2, 3):
        torch.manual_seed(seed)  # whatever it draws must not matter
        weights = _weights()
        optimizer = make(_group(weights))
        _train(optimizer, weights, range(STEPS))
        runs.append(weights)
    hold(_equal(runs[0], runs[1]) and _equal(runs[0], runs[2]), "deterministic: the same gradients give the same bits")


def _check_resume(make: Make) -> None:
    for cut in (1, 2, 5):
        weights = _weights()
        optimizer = make(_group(weights))
        _train(optimizer, weights, range(cut))
        stored = io.BytesIO()
        torch.save(optimizer.state_dict(), stored)
        stored.seek(0)
        resumed_weights = [nn.Parameter(weight.detach().clone()) for weight in weights]
        resumed = make(_group(resumed_weights))
        resumed.load_state_dict(torch.load(stored, weights_only=True))
        _train(optimizer, weights, range(cut, STEPS))
        _train(resumed, resumed_weights, range(cut, STEPS))
        hold(
            _equal(weights, resumed_weights),
            f"the whole state is in state_dict(): saved after step {cut} and loaded, it continues to the same bits",
        )


def _check_groups(make: Make, fields: set[str]) -> None:
    def outcome(
        groups: Callable[[list[nn.Parameter]], Groups], lr_at: dict[int, float] | None = None, **changed: Any
    ) -> Any:
        weights = _weights()
        optimizer = make(groups(weights), **changed)
        for step in range(STEPS):
            if lr_at and step in lr_at:
                for group in optimizer.param_groups:
                    group["lr"] = lr_at[step]
            _train(optimizer, weights, [step])
        return weights

    peak = float(make(_group(_weights())).param_groups[0].get("lr", 0.0))
    hold(peak > 0, "its groups have an `lr`, above 0")
    plain = outcome(_group)
    early, late = outcome(_group, {0: peak / 2}), outcome(_group, {STEPS - 1: peak / 2})
    hold(not _equal(plain, early) and not _equal(plain, late), "it reads `lr` from its groups at each step")
    if "lr" in fields:
        hold(_equal(early, outcome(_group, lr=peak / 2)), "`lr` written into a group is the lr that counts")
        grouped = outcome(lambda weights: [{"params": weights, "weight_decay": 0.0, "lr": peak / 2}])
        hold(_equal(early, grouped), "an option in a group wins over the settings: lr")
    still = outcome(_group, {0: 0.0})
    hold(_equal(still, _weights()), "at lr 0 the weights stay")

    def decaying(weights: list[nn.Parameter]) -> Groups:
        return [{"params": weights[:1], "weight_decay": 0.5}, {"params": weights[1:], "weight_decay": 0.0}]

    if "weight_decay" not in fields:  # it decays nothing, and no config can ask it to
        not_applicable("weight_decay of a group wins over the settings", "it has no setting weight_decay")
        return
    mixed = outcome(decaying)
    hold(not torch.equal(mixed[0], plain[0]), "an option in a group wins over the settings: weight_decay")
    hold(_equal(mixed[1:], plain[1:]), "each group has its own options: weight_decay of one leaves the other alone")
    hold(_equal(mixed, outcome(decaying, weight_decay=0.25)), "weight_decay of the settings yields to a group's")
    whole = outcome(lambda weights: [{"params": weights}], weight_decay=0.5)
    hold(torch.equal(whole[0], mixed[0]), "weight_decay of the settings holds for a group that has none")


def _check_state(make: Make, component: Component, *, counted: bool) -> None:
    """Check the state of each parameter after two steps.

    counted: whether `state_numbers` is declared for these settings
    """
    weights = _weights()
    optimizer = make(_group(weights))
    _train(optimizer, weights, range(2))
    for weight in weights:
        shapes = [(), tuple(weight.shape)]
        if component.whole_parameters:
            shapes += [
                (1,) * dim + (length,) + (1,) * (weight.ndim - dim - 1) for dim, length in enumerate(weight.shape)
            ]
        numbers = 0
        for state, value in optimizer.state[weight].items():
            shape = tuple(value.shape) if isinstance(value, Tensor) else ()
            fits = shape in shapes and isinstance(value, Tensor | int | float | bool | type(None))
            hold(fits, f"per-parameter state is a scalar or of the parameter's shape; {state!r} is not")
            numbers += value.numel() if isinstance(value, Tensor) and value.ndim else 0
        if counted and component.state_numbers is not None:
            element, side = component.state_numbers
            most = element * weight.numel() + side * sum(weight.shape)
            said = f"{most:g} at most for a {list(weight.shape)}; it has {numbers}"
            hold(numbers <= most, f"state_numbers: {said}")
    if component.state_numbers is None:
        not_applicable("state_numbers: no more state than it says", "it declares none")


def _check_shares(make: Make) -> None:
    """Step as ZeRO 1 does with whole parameters: on each rank, a group keeps some of its parameters, or none."""
    whole, shared = _weights(), _weights()
    optimizers = [
        make([{"params": weights[:1], "weight_decay": 0.5}, {"params": weights[1:], "weight_decay": 0.0}])
        for weights in (whole, shared, shared, shared)
    ]
    for optimizer, mine in zip(optimizers[1:], (shared[:2], shared[2:], []), strict=True):
        for group in optimizer.param_groups:
            group["params"] = [each for each in group["params"] if any(each is one for one in mine)]
    for step in range(STEPS):
        for weights in (whole, shared):
            _give(weights, _gradients(whole, step))
        for optimizer in optimizers:
            optimizer.step()
    hold(_equal(whole, shared), SHARES)


def _check_slices(make: Make) -> None:
    """Step as a sharded stage does: all parameters of a group in one flat tensor, cut at any place."""
    weights = _weights()
    optimizer = make(_group(weights))
    flat = torch.cat([weight.detach().reshape(-1) for weight in weights])
    cut = flat.numel() // 2 + 1
    slices = [nn.Parameter(part.clone()) for part in (flat[:cut], flat[cut:])]
    sliced = make(_group(slices))
    for step in range(STEPS):
        gradients = _gradients(weights, step)
        _give(weights, gradients)
        flat_gradient = torch.cat([gradient.reshape(-1) for gradient in gradients])
        _give(slices, [flat_gradient[:cut].clone(), flat_gradient[cut:].clone()])
        optimizer.step()
        sliced.step()
    whole = torch.cat([weight.detach().reshape(-1) for weight in weights])
    near = torch.allclose(torch.cat([part.detach() for part in slices]), whole, rtol=1e-5, atol=1e-6)
    hold(near, SLICES)


def _weights() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(5)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def _group(weights: list[nn.Parameter]) -> Groups:
    return [{"params": weights, "weight_decay": 0.0}]


def _gradients(weights: Sequence[Tensor], step: int) -> list[Tensor]:
    """Gradients of both signs, which change from step to step, so that ignoring signs or sizes shows."""
    generator = torch.Generator().manual_seed(100 + step)
    turn = 1.0 if step % 3 else -2.0
    return [turn * torch.randn(weight.shape, generator=generator) for weight in weights]


def _give(weights: Sequence[nn.Parameter], gradients: Sequence[Tensor]) -> None:
    for weight, gradient in zip(weights, gradients, strict=False):
        weight.grad = gradient.clone()


def _train(optimizer: torch.optim.Optimizer, weights: Sequence[nn.Parameter], steps: Sequence[int]) -> None:
    for step in steps:
        _give(weights, _gradients(weights, step))
        optimizer.step()


def _equal(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))

"""The check of an optimizer against `neox_core.contracts.optim.Optimizer`."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen
from torch import Tensor, nn

from neox_author.testing.clauses import clauses, hold, not_applicable
from neox_author.testing.plugins import build
from neox_core.contracts.optim import OptimizerRun, ScheduleShape

if TYPE_CHECKING:
    from neox_core.hooks.catalog import Catalog
    from neox_core.hooks.component import Component
    from neox_core.hooks.registry import Entry

SHARES = "zero_stages names 1 beside whole_parameters, so a parameter moves alike when others leave the groups"
SLICES = "zero_stages names a sharded stage, so flat slices of the parameters give the same update"
SHAPES = ((4, 6), (7,), (3, 2, 2))
STEPS = 12
NAMES = ("layers.0.attention.dense.weight", "norm.weight", "another")
RUN = ScheduleShape(peak_lr=0.01, min_lr=0.0, warmup_steps=2, decay_steps=STEPS, total_steps=STEPS)

Groups = list[dict[str, Any]]


@frozen
class Make:
    """Makes and steps the optimizer of an entry as neox does in a run of `STEPS` steps."""

    entry: Entry
    target: Any
    settings: dict[str, Any]

    def __call__(self, groups: Groups, **changed: Any) -> torch.optim.Optimizer:
        weights = [weight for group in groups for weight in group["params"]]
        names = dict(zip(weights, NAMES * len(weights), strict=False))
        more = {"run": OptimizerRun(RUN, names)} if "run" in signature(self.target).parameters else {}
        made: Any = self.target(groups, build(self.entry, **{**self.settings, **changed}), **more)
        if self.uses("modes"):
            hold(
                all(callable(getattr(made, name, None)) for name in ("train", "eval")),
                "modes: it has train() and eval()",
            )
            made.train()
        optimizer: torch.optim.Optimizer = made
        return optimizer

    def uses(self, use: str) -> bool:
        """Whether the component declares this use."""
        return use in self.entry.component.uses

    def step(self, optimizer: torch.optim.Optimizer, called: list[int] | None = None) -> None:
        """One step. Its closure adds to each gradient half of what the weight has moved since the step began."""
        if not self.uses("closure"):
            optimizer.step()
            return
        first = [
            (weight, weight.grad.clone(), weight.detach().clone())
            for group in optimizer.param_groups
            for weight in group["params"]
            if weight.grad is not None
        ]

        def closure() -> Tensor:
            if called is not None:
                called.append(1)
            for weight, gradient, start in first:
                weight.grad = gradient + 0.5 * (weight.detach() - start)
            return torch.ones(())

        optimizer.step(closure)


@clauses
def check_optimizer(catalog: Catalog, name: str, **settings: Any) -> None:
    """Raises AssertionError naming the clause of `contracts.Optimizer` that the optimizer breaks."""
    entry = catalog.find("optimizer", name)
    make = Make(entry, entry.load(), settings)
    made = make([{"params": _weights(), "weight_decay": 0.0}])
    hold(isinstance(made, torch.optim.Optimizer), f"it is a torch.optim.Optimizer, not a {type(made).__name__}")
    rates = [group.get("lr") for group in made.param_groups]
    hold(all(isinstance(rate, float | int | Tensor) for rate in rates), "its groups have an `lr`, which is a number")
    fields = {field.name for field in getattr(entry.component.settings, "__attrs_attrs__", ())}
    _check_step(make)
    _check_determinism(make)
    _check_state(make, entry.component, counted=set(settings) <= {"lr"})
    _check_resume(make)
    _check_groups(make, fields)
    _check_closure(make)
    _check_modes(make)
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
        make.step(optimizer)
        if make.uses("closure"):
            continue
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
    make.step(optimizer)
    hold(not torch.equal(idle, start[-1]), "a parameter whose first gradient comes late is moved by it")
    optimizer.zero_grad()
    hold(all(weight.grad is None for weight in weights), "zero_grad() lets go of the gradients")


def _check_determinism(make: Make) -> None:
    runs = []
    for seed in (1, 2, 3):
        torch.manual_seed(seed)  # whatever it draws must not matter
        weights = _weights()
        optimizer = make(_group(weights))
        _train(make, optimizer, weights, range(STEPS))
        runs.append(weights)
    hold(_equal(runs[0], runs[1]) and _equal(runs[0], runs[2]), "deterministic: the same gradients give the same bits")


def _check_resume(make: Make) -> None:
    for cut in (1, 2, 5):
        weights = _weights()
        optimizer = make(_group(weights))
        _train(make, optimizer, weights, range(cut))
        stored = io.BytesIO()
        torch.save(optimizer.state_dict(), stored)
        stored.seek(0)
        resumed_weights = [nn.Parameter(weight.detach().clone()) for weight in weights]
        resumed = make(_group(resumed_weights))
        resumed.load_state_dict(torch.load(stored, weights_only=True))
        _train(make, optimizer, weights, range(cut, STEPS))
        _train(make, resumed, resumed_weights, range(cut, STEPS))
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
            _train(make, optimizer, weights, [step])
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
    _train(make, optimizer, weights, range(2))
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


def _check_closure(make: Make) -> None:
    calls, whole = "closure: step(closure) calls it", "closure: where it finds no finite gradient, the weights stay"
    if not make.uses("closure"):
        not_applicable(calls, "Component.uses has no closure")
        return
    weights, called = _weights(), list[int]()
    optimizer = make(_group(weights))
    _give(weights, _gradients(weights, 0))
    make.step(optimizer, called)
    hold(bool(called), calls)
    start = [weight.detach().clone() for weight in weights]
    _give(weights, _gradients(weights, 1))

    def nothing() -> Tensor:
        for weight in weights:
            weight.grad = None
        return torch.full((), torch.nan)

    optimizer.step(nothing)
    hold(_equal(weights, start), whole)


def _check_modes(make: Make) -> None:
    restores = "modes: train() after eval() restores the weights to the bit"
    if not make.uses("modes"):
        not_applicable(restores, "Component.uses has no modes")
        return
    weights = _weights()
    optimizer: Any = make(_group(weights))
    optimizer.eval()
    hold(_equal(weights, _weights()), "modes: before the first step, eval() changes nothing")
    optimizer.train()
    _train(make, optimizer, weights, range(3))
    trained = [weight.detach().clone() for weight in weights]
    optimizer.train()
    hold(_equal(weights, trained), "modes: a second train() changes nothing")
    optimizer.eval()
    evaluated = [weight.detach().clone() for weight in weights]
    optimizer.eval()
    hold(_equal(weights, evaluated), "modes: a second eval() changes nothing")
    hold(not _equal(evaluated, trained), "modes: eval() changes the weights, once there were steps")
    stored = io.BytesIO()
    torch.save(optimizer.state_dict(), stored)
    optimizer.train()
    hold(_equal(weights, trained), restores)
    stored.seek(0)
    loaded = _weights()
    resumed: Any = make(_group(loaded))
    resumed.eval()
    for weight, value in zip(loaded, evaluated, strict=True):
        weight.detach().copy_(value)
    resumed.load_state_dict(torch.load(stored, weights_only=True))
    resumed.train()
    _train(make, optimizer, weights, range(3, STEPS))
    _train(make, resumed, loaded, range(3, STEPS))
    hold(_equal(weights, loaded), "modes: saved in eval() and loaded, it continues to the same bits after train()")


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
            make.step(optimizer)
    hold(_equal(whole, shared), SHARES)


def _check_slices(make: Make) -> None:
    """Step as a sharded stage does: all parameters of a group in one flat tensor, cut at any place."""
    weights, copies = _weights(), _weights()
    optimizer, sliced = make(_group(weights)), make(_group(copies))
    members = [list(group["params"]) for group in sliced.param_groups]
    for group in sliced.param_groups:
        flat = torch.cat([each.detach().reshape(-1) for each in group["params"]])
        group["params"] = [nn.Parameter(part.clone()) for part in flat.split(flat.numel() // 2 + 1)]
    for step in range(STEPS):
        gradients = _gradients(weights, step)
        _give(weights, gradients)
        of = {id(copy): gradient for copy, gradient in zip(copies, gradients, strict=True)}
        for group, mine in zip(sliced.param_groups, members, strict=True):
            flat = torch.cat([of[id(each)].reshape(-1) for each in mine])
            _give(group["params"], [each.clone() for each in flat.split(flat.numel() // 2 + 1)])
        make.step(optimizer)
        make.step(sliced)
    whole = torch.cat([weight.detach().reshape(-1) for group in optimizer.param_groups for weight in group["params"]])
    parts = torch.cat([part.detach() for group in sliced.param_groups for part in group["params"]])
    hold(torch.allclose(parts, whole, rtol=1e-5, atol=1e-6), SLICES)


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


def _train(make: Make, optimizer: torch.optim.Optimizer, weights: Sequence[nn.Parameter], steps: Sequence[int]) -> None:
    for step in steps:
        _give(weights, _gradients(weights, step))
        make.step(optimizer)


def _equal(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(some, others, strict=True))

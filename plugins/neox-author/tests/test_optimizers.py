"""check_optimizer passes a sound optimizer and names the clause that a faulty one breaks."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pluggy
import pytest
import torch
from attrs import asdict, frozen
from neox_author.testing.optimizers import check_optimizer

from neox_core.api import Component, setting
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.registry import Entry, PluginInfo, Registry

Check = Callable[..., None]


@frozen
class Settings:
    lr: float = setting(0.05, help="Peak.")
    momentum: float = setting(0.9, help="Of the buffer.")
    weight_decay: float = setting(0.0, help="Decoupled.")


class Sound(torch.optim.Optimizer):
    """Momentum with decoupled decay and a step count, elementwise."""

    def __init__(self, params: Any, settings: Settings) -> None:
        super().__init__(params, asdict(settings))

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self.move(weight, weight.grad, self.state[weight], group)

    def move(self, weight: Any, grad: Any, state: Any, group: Any) -> None:
        if not state:
            state["step"], state["momentum"] = torch.zeros(()), torch.zeros_like(weight)
        state["step"] += 1
        state["momentum"].mul_(group["momentum"]).add_(grad)
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.sub_(state["momentum"] / state["step"].sqrt(), alpha=group["lr"])


class LosesMomentum(Sound):
    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        for held in self.state.values():
            held["momentum"] = torch.zeros_like(held["momentum"])


class LosesStep(Sound):
    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        for held in self.state.values():
            held["step"] = torch.ones(())


class HiddenState(Sound):
    """Keeps a count where no state_dict sees it."""

    def __init__(self, params: Any, settings: Settings) -> None:
        super().__init__(params, settings)
        self.count = 0

    def step(self) -> None:
        self.count += 1
        super().step()

    def move(self, weight: Any, grad: Any, state: Any, group: Any) -> None:
        super().move(weight, grad / self.count, state, group)


class SignIsLost(Sound):
    """Stores the size of the momentum only: gradients of one sign would not show it."""

    def state_dict(self) -> Any:
        stored = super().state_dict()
        states = {
            key: {**held, "momentum": held["momentum"].abs()} if "momentum" in held else held
            for key, held in stored["state"].items()
        }
        return {**stored, "state": states}


class OneLrForAll(Sound):
    """Reads lr from its settings."""

    def move(self, weight: Any, grad: Any, state: Any, group: Any) -> None:
        super().move(weight, grad, state, {**group, "lr": self.defaults["lr"]})


class LrOfTheStart(Sound):
    """Reads lr from its groups once."""

    def move(self, weight: Any, grad: Any, state: Any, group: Any) -> None:
        first = group.setdefault("first_lr", group["lr"])
        super().move(weight, grad, state, {**group, "lr": first})


class OneDecayForAll(Sound):
    def move(self, weight: Any, grad: Any, state: Any, group: Any) -> None:
        super().move(weight, grad, state, {**group, "weight_decay": self.defaults["weight_decay"]})


class FirstGroupForAll(Sound):
    def move(self, weight: Any, grad: Any, state: Any, group: Any) -> None:
        super().move(weight, grad, state, self.param_groups[0])


class NoDecay(Sound):
    def move(self, weight: Any, grad: Any, state: Any, group: Any) -> None:
        super().move(weight, grad, state, {**group, "weight_decay": 0.0})


class ChangesGradient(Sound):
    def move(self, weight: Any, grad: Any, state: Any, group: Any) -> None:
        grad.mul_(0.5)
        super().move(weight, grad, state, group)


class DropsGradient(Sound):
    def step(self) -> None:
        super().step()
        for group in self.param_groups:
            for weight in group["params"]:
                weight.grad = None


class Random(Sound):
    def move(self, weight: Any, grad: Any, state: Any, group: Any) -> None:
        super().move(weight, grad * (1 + 1e-6 * torch.randn(())), state, group)


class SharedCount(Sound):
    """What one optimizer did changes the next one."""

    calls: ClassVar[list[int]] = []

    def step(self) -> None:
        self.calls.append(1)
        super().step()

    def move(self, weight: Any, grad: Any, state: Any, group: Any) -> None:
        super().move(weight, grad / len(self.calls), state, group)


class MovesIdle(Sound):
    """Decays parameters that have no gradient."""

    @torch.no_grad()
    def step(self) -> None:
        super().step()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    weight.mul_(0.99)


class ForgetsLate(Sound):
    """Takes up only parameters that had a gradient at the first step."""

    def step(self) -> None:
        if not hasattr(self, "known"):
            self.known = {id(w) for group in self.param_groups for w in group["params"] if w.grad is not None}
        super().step()

    def move(self, weight: Any, grad: Any, state: Any, group: Any) -> None:
        if id(weight) in self.known:
            super().move(weight, grad, state, group)


class Rows(Sound):
    """State of one number a row: fine whole, not in slices."""

    def move(self, weight: Any, grad: Any, state: Any, group: Any) -> None:
        super().move(weight, grad, state, group)
        state["rows"] = torch.zeros(weight.shape[0], 1, 1, 1)


class KeepsAPath(Sound):
    """State that no checkpoint can hold."""

    def move(self, weight: Any, grad: Any, state: Any, group: Any) -> None:
        super().move(weight, grad, state, group)
        state["path"] = Path()


class Counts(Sound):
    """State of one number for each row."""

    def move(self, weight: Any, grad: Any, state: Any, group: Any) -> None:
        super().move(weight, grad, state, group)
        state["rows"] = torch.zeros(weight.shape[0], *(1 for _ in weight.shape[1:]))


class WholeNorm(Sound):
    """Looks at the whole parameter, so slices of it move otherwise."""

    def move(self, weight: Any, grad: Any, state: Any, group: Any) -> None:
        super().move(weight, grad / grad.norm(), state, group)


class NormOfAll(Sound):
    """Looks at all parameters together, so a share of them moves otherwise."""

    def move(self, weight: Any, grad: Any, state: Any, group: Any) -> None:
        every = [w.grad.norm() for some in self.param_groups for w in some["params"] if w.grad is not None]
        super().move(weight, grad / torch.stack(every).norm(), state, group)


class KeepsAll(Sound):
    """Steps the parameters of its start, whatever the groups hold."""

    def __init__(self, params: Any, settings: Settings) -> None:
        super().__init__(params, settings)
        self.first = [list(group["params"]) for group in self.param_groups]

    def step(self) -> None:
        for group, params in zip(self.param_groups, self.first, strict=True):
            group["params"] = params
        super().step()


class Idle(Sound):
    def move(self, weight: Any, grad: Any, state: Any, group: Any) -> None:
        return


class NoGroups:
    """Not an optimizer of torch's."""

    def __init__(self, params: Any, settings: Settings) -> None:
        self.param_groups = params


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Check:
    def run(target: Any, zero_stages: tuple[int, ...] = (0, 1), **declared: Any) -> None:
        module = ModuleType("neox_mutants")
        module.target = target
        monkeypatch.setitem(sys.modules, "neox_mutants", module)
        registry = Registry()
        component = Component("mutant", "neox_mutants:target", Settings, zero_stages=zero_stages, **declared)
        registry.add(Entry("optimizer", component, PluginInfo("neox-mutants", "0.1.0", "neox_mutants")))
        check_optimizer(Catalog(pluggy.PluginManager("neox"), registry, ()), "mutant")

    return run


def test_a_sound_optimizer_passes(check: Check) -> None:
    check(Sound)


@pytest.mark.parametrize(
    ("mutant", "clause"),
    [
        (LosesMomentum, "whole state is in state_dict"),
        (LosesStep, "whole state is in state_dict"),
        (HiddenState, "whole state is in state_dict"),
        (SignIsLost, "whole state is in state_dict"),
        (OneLrForAll, "reads `lr` from its groups"),
        (LrOfTheStart, "reads `lr` from its groups"),
        (OneDecayForAll, "option in a group wins over the settings: weight_decay"),
        (FirstGroupForAll, "each group has its own options"),
        (NoDecay, "option in a group wins over the settings: weight_decay"),
        (ChangesGradient, "leaves the gradients as they are"),
        (DropsGradient, r"leaves \.grad in place"),
        (Random, "deterministic"),
        (SharedCount, "deterministic"),
        (MovesIdle, "without a gradient is skipped"),
        (ForgetsLate, "first gradient comes late"),
        (Rows, "scalar or of the parameter's shape"),
        (KeepsAPath, "scalar or of the parameter's shape; 'path' is not"),
        (WholeNorm, "flat slices"),
        (Idle, "moves the weights"),
        (NoGroups, "is a torch.optim.Optimizer"),
    ],
)
def test_each_fault_is_named(check: Check, mutant: type, clause: str) -> None:
    with pytest.raises(AssertionError, match=clause):
        check(mutant)


def test_slices_matter_at_sharded_stages_only(check: Check) -> None:
    check(WholeNorm, zero_stages=(0,))


def test_a_share_of_whole_parameters_moves_as_among_all(check: Check) -> None:
    check(WholeNorm, whole_parameters=True)
    for mutant in (NormOfAll, KeepsAll):
        check(mutant, zero_stages=(0,), whole_parameters=True)
        with pytest.raises(AssertionError, match="moves alike when others leave the groups"):
            check(mutant, whole_parameters=True)
    with pytest.raises(AssertionError, match="flat slices"):
        check(WholeNorm, zero_stages=(0, 1, 2), whole_parameters=True)


def test_numbers_for_rows_are_for_those_that_see_whole_parameters(check: Check) -> None:
    check(Counts, zero_stages=(0,), whole_parameters=True)
    with pytest.raises(AssertionError, match="scalar or of the parameter's shape; 'rows'"):
        check(Counts, zero_stages=(0,))
    with pytest.raises(AssertionError, match="scalar or of the parameter's shape; 'rows'"):
        check(Rows, zero_stages=(0,), whole_parameters=True)


def test_the_declared_size_of_the_state_is_counted(check: Check) -> None:
    check(Counts, zero_stages=(0,), whole_parameters=True, state_numbers=(1, 1))
    with pytest.raises(AssertionError, match=r"state_numbers: 24 at most for a \[4, 6\]; it has 28"):
        check(Counts, zero_stages=(0,), whole_parameters=True, state_numbers=(1, 0))

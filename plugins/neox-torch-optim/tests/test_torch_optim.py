from collections import defaultdict
from math import prod, sqrt
from typing import Any

import pytest
import torch
from neox_author.testing import assert_light, build, check_optimizer, load_only
from torch import Tensor

from neox_core.errors import ConfigError
from neox_core.hooks.registry import Entry

# name -> settings that are none of them at their default
SETTINGS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "weight_decay": 0.1, "momentum": 0.9, "nesterov": True},
    "Adagrad": {"lr": 0.1, "weight_decay": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.5, "eps": 1e-3},
    "RMSprop": {"lr": 0.1, "weight_decay": 0.1, "alpha": 0.8, "eps": 1e-3, "momentum": 0.5, "centered": True},
    "Adadelta": {"lr": 0.1, "weight_decay": 0.1, "rho": 0.8, "eps": 1e-3},
    "Adamax": {"lr": 0.1, "weight_decay": 0.1, "betas": (0.8, 0.9), "eps": 1e-3},
    "NAdam": {
        "lr": 0.1,
        "weight_decay": 0.1,
        "betas": (0.8, 0.9),
        "momentum_decay": 0.1,
        "decoupled_weight_decay": True,
    },
    "RAdam": {"lr": 0.1, "weight_decay": 0.1, "betas": (0.8, 0.9), "eps": 1e-3, "decoupled_weight_decay": True},
}
OFFERS = load_only("neox-torch-optim")


def entry_of(name: str) -> Entry:
    return OFFERS.find("optimizer", name)


def test_listing_imports_no_torch() -> None:
    assert_light("neox-torch-optim")


def test_every_offer_is_tested() -> None:
    assert set(OFFERS.registry.names("optimizer")) == set(SETTINGS)


@pytest.mark.parametrize("name", SETTINGS)
def test_optimizer_contract(name: str) -> None:
    check_optimizer(OFFERS, name)
    check_optimizer(OFFERS, name, **SETTINGS[name])


@pytest.mark.parametrize("name", SETTINGS)
def test_names_and_defaults_are_those_of_torch(name: str) -> None:
    entry = entry_of(name)
    weight = torch.nn.Parameter(torch.ones(3))
    ours = entry.load()([{"params": [weight]}], build(entry))
    theirs = getattr(torch.optim, name)([weight])
    assert isinstance(ours, type(theirs)) is (name != "Adagrad")
    assert ours.defaults.items() <= theirs.defaults.items()


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_reaches_the_optimizer(name: str) -> None:
    entry, changed = entry_of(name), SETTINGS[name]
    optimizer = entry.load()([{"params": [torch.nn.Parameter(torch.ones(3))]}], build(entry, **changed))
    assert {key: optimizer.param_groups[0][key] for key in changed} == changed
    assert all(changed[key] != value for key, value in vars_of(build(entry)).items() if key in changed)


def vars_of(settings: Any) -> dict[str, Any]:
    return {field.name: getattr(settings, field.name) for field in settings.__attrs_attrs__}


State = defaultdict[str, Any]  # numbers and tensors that begin as 0


def sgd(o: Any, s: State, w: Tensor, g: Tensor, t: int) -> Tensor:
    """Sutskever et al. 2013, with the rate outside of the momentum."""
    g = g + o.weight_decay * w
    s["velocity"] = o.momentum * s["velocity"] + g
    return w - o.lr * (g + o.momentum * s["velocity"] if o.nesterov else s["velocity"])


def adagrad(o: Any, s: State, w: Tensor, g: Tensor, t: int) -> Tensor:
    """Duchi et al. 2011, figure 1, of the diagonal."""
    g = g + o.weight_decay * w
    s["sum"] = s["sum"] + g**2
    return w - o.lr / (1 + (t - 1) * o.lr_decay) * g / ((s["sum"] + o.initial_accumulator_value).sqrt() + o.eps)


def rmsprop(o: Any, s: State, w: Tensor, g: Tensor, t: int) -> Tensor:
    """Hinton 2012, lecture 6; centred and with momentum as in Graves 2013 (arXiv:1308.0850), equations 38 to 41."""
    g = g + o.weight_decay * w
    s["square"] = o.alpha * s["square"] + (1 - o.alpha) * g**2
    s["mean"] = o.alpha * s["mean"] + (1 - o.alpha) * g
    spread = s["square"] - s["mean"] ** 2 if o.centered else s["square"]
    s["velocity"] = o.momentum * s["velocity"] + g / (spread.sqrt() + o.eps)
    return w - o.lr * s["velocity"]


def adadelta(o: Any, s: State, w: Tensor, g: Tensor, t: int) -> Tensor:
    """arXiv:1212.5701, algorithm 1."""
    g = g + o.weight_decay * w
    s["square"] = o.rho * s["square"] + (1 - o.rho) * g**2
    step = (s["steps"] + o.eps) ** 0.5 / (s["square"] + o.eps).sqrt() * g
    s["steps"] = o.rho * s["steps"] + (1 - o.rho) * step**2
    return w - o.lr * step


def adamax(o: Any, s: State, w: Tensor, g: Tensor, t: int) -> Tensor:
    """arXiv:1412.6980, algorithm 2; torch adds eps to the size of the gradient."""
    g = g + o.weight_decay * w
    s["mean"] = o.betas[0] * s["mean"] + (1 - o.betas[0]) * g
    s["largest"] = torch.maximum(o.betas[1] * (s["largest"] + 0 * g), g.abs() + o.eps)
    return w - o.lr / (1 - o.betas[0] ** t) * s["mean"] / s["largest"]


def moments(o: Any, s: State, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The weight, shrunk where decay is decoupled, and the gradient, with it added where it is not."""
    g = g if o.decoupled_weight_decay else g + o.weight_decay * w
    s["mean"] = o.betas[0] * s["mean"] + (1 - o.betas[0]) * g
    s["square"] = o.betas[1] * s["square"] + (1 - o.betas[1]) * g**2
    return (w * (1 - o.lr * o.weight_decay) if o.decoupled_weight_decay else w), g


def nadam(o: Any, s: State, w: Tensor, g: Tensor, t: int) -> Tensor:
    """Dozat 2016, algorithm 2, with the schedule of its section 5: the momentum is b1 (1 - 0.96^(t psi) / 2)."""
    w, g = moments(o, s, w, g)
    momentum = [o.betas[0] * (1 - 0.5 * 0.96 ** (i * o.momentum_decay)) for i in range(1, t + 2)]
    ahead = momentum[t] * s["mean"] / (1 - prod(momentum)) + (1 - momentum[t - 1]) * g / (1 - prod(momentum[:t]))
    return w - o.lr * ahead / ((s["square"] / (1 - o.betas[1] ** t)).sqrt() + o.eps)


def radam(o: Any, s: State, w: Tensor, g: Tensor, t: int) -> Tensor:
    """arXiv:1908.03265, algorithm 2; its authors' code rectifies above 5 degrees of freedom, not 4."""
    w, g = moments(o, s, w, g)
    mean, b2 = s["mean"] / (1 - o.betas[0] ** t), o.betas[1]
    most = 2 / (1 - b2) - 1
    freedom = most - 2 * t * b2**t / (1 - b2**t)
    if freedom <= 5:
        return w - o.lr * mean
    rectified = sqrt((freedom - 4) * (freedom - 2) * most / ((most - 4) * (most - 2) * freedom))
    return w - o.lr * rectified * mean * sqrt(1 - b2**t) / (s["square"].sqrt() + o.eps)


PAPERS = {each.__name__: each for each in (sgd, adagrad, rmsprop, adadelta, adamax, nadam, radam)}


@pytest.mark.parametrize("changed", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_50_steps_equal_the_paper_in_float64(name: str, changed: bool) -> None:
    entry, generator = entry_of(name), torch.Generator().manual_seed(4)
    settings = build(entry, **(SETTINGS[name] if changed else {}))
    expected = torch.randn(30, generator=generator, dtype=torch.float64)
    weight = torch.nn.Parameter(expected.clone())
    optimizer = entry.load()([{"params": [weight]}], settings)
    state: State = defaultdict(float)
    for step in range(1, 51):
        weight.grad = torch.randn(30, generator=generator, dtype=torch.float64)
        expected = PAPERS[name.lower()](settings, state, expected, weight.grad, step)
        optimizer.step()
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-6, atol=1e-6)
    held = sum(value.numel() for value in optimizer.state[weight].values() if torch.is_tensor(value) and value.ndim)
    assert changed or (held / 30, 0) == entry.component.state_numbers


@pytest.mark.parametrize(
    "settings", [{"lr": -1.0}, {"nesterov": True}, {"momentum": 0.9, "nesterov": True, "dampening": 0.1}]
)
def test_bad_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        build(entry_of("SGD"), **settings)

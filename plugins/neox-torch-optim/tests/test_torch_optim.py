from typing import Any

import pytest
import torch

from neox_core.errors import ConfigError
from neox_core.hooks.registry import Entry
from neox_core.testing import assert_light, build, check_optimizer, load_only

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
    assert type(ours) is getattr(torch.optim, name)
    assert ours.defaults == getattr(torch.optim, name)([weight]).defaults


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_reaches_the_optimizer(name: str) -> None:
    entry, changed = entry_of(name), SETTINGS[name]
    optimizer = entry.load()([{"params": [torch.nn.Parameter(torch.ones(3))]}], build(entry, **changed))
    assert {key: optimizer.param_groups[0][key] for key in changed} == changed
    assert all(changed[key] != value for key, value in vars_of(build(entry)).items() if key in changed)


def vars_of(settings: Any) -> dict[str, Any]:
    return {field.name: getattr(settings, field.name) for field in settings.__attrs_attrs__}


def test_nesterov_momentum_by_hand() -> None:
    entry = entry_of("SGD")
    weight = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimizer = entry.load()([{"params": [weight]}], build(entry, lr=0.5, momentum=0.9, nesterov=True))
    for gradient in (2.0, -1.0):  # the buffer is 2.0, then 0.8
        weight.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
    assert weight.item() == pytest.approx(1 - 0.5 * (2 + 0.9 * 2) - 0.5 * (-1 + 0.9 * 0.8))


@pytest.mark.parametrize(
    "settings", [{"lr": -1.0}, {"nesterov": True}, {"momentum": 0.9, "nesterov": True, "dampening": 0.1}]
)
def test_bad_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        build(entry_of("SGD"), **settings)

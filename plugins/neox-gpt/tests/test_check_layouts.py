"""check_sparse_layout passes a sound layout and names the clause that a faulty one breaks."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pluggy
import pytest
import torch
from attrs import frozen
from neox_gpt.api import LayoutShape
from neox_gpt.testing import check_sparse_layout
from torch import Tensor

from neox_core.api import setting
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.component import Component
from neox_core.hooks.registry import Entry, PluginInfo, Registry


@frozen
class Settings:
    block: int = setting(16, help="Side of a block.")


@frozen
class Blockless:
    size: int = setting(16, help="Side of a block.")


def sound(shape: LayoutShape, settings: Any) -> Tensor:
    return torch.ones(shape.num_heads, shape.num_blocks, shape.num_blocks, dtype=torch.bool).tril()


def ahead(shape: LayoutShape, settings: Any) -> Tensor:
    return torch.ones_like(sound(shape, settings))


def both_ways(shape: LayoutShape, settings: Any) -> Tensor:
    return sound(shape, settings) if shape.causal else ahead(shape, settings)


def numbers(shape: LayoutShape, settings: Any) -> Tensor:
    return sound(shape, settings).long()


def headless(shape: LayoutShape, settings: Any) -> Tensor:
    return sound(shape, settings)[:1]


def drawn(shape: LayoutShape, settings: Any) -> Tensor:
    return sound(shape, settings) & (torch.rand(shape.num_blocks, shape.num_blocks) < 0.5)


def seeding(shape: LayoutShape, settings: Any) -> Tensor:
    torch.manual_seed(shape.seed)
    return sound(shape, settings)


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def run(target: Any, settings: type = Settings) -> None:
        module = ModuleType("neox_mutants")
        module.target = target
        monkeypatch.setitem(sys.modules, "neox_mutants", module)
        registry = Registry()
        component = Component("mine", "neox_mutants:target", settings)
        registry.add(Entry("sparse layout", component, PluginInfo("neox-mutants", "0.1.0", "neox_mutants")))
        check_sparse_layout(Catalog(pluggy.PluginManager("neox"), registry, ()), "mine")

    return run


@pytest.mark.parametrize("target", [sound, both_ways])
def test_a_sound_one_passes(check: Callable[..., None], target: Any) -> None:
    check(target)


@pytest.mark.parametrize(
    ("target", "clause"),
    [
        (ahead, "lower triangular"),
        (numbers, "a tensor of bool"),
        (headless, "query blocks, key blocks"),
        (drawn, "a pure function"),
        (seeding, "own generator is left as it is"),
    ],
)
def test_a_faulty_one_is_named(check: Callable[..., None], target: Any, clause: str) -> None:
    with pytest.raises(AssertionError, match=clause):
        check(target)


def test_settings_need_a_block(check: Callable[..., None]) -> None:
    with pytest.raises(AssertionError, match="the settings have `block`"):
        check(sound, Blockless)

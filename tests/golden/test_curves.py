"""A hundred steps of each family of recipes give the curve that was recorded: numerics do not change unseen."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

TOLERANCE = 1e-3
"""Nats: what the order of sums on another processor can make of a hundred steps; a changed formula makes more."""


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("golden_curves", Path(__file__).with_name("curves.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CURVES = load()


@pytest.mark.parametrize("name", CURVES.FAMILIES)
def test_the_recorded_curve(name: str) -> None:
    recorded = [float(line) for line in CURVES.path(name).read_text().split()]
    got = CURVES.curve(CURVES.FAMILIES[name])
    assert len(got) == len(recorded) == CURVES.STEPS
    assert got[:10] == pytest.approx(recorded[:10], abs=1e-4)
    assert got == pytest.approx(recorded, abs=TOLERANCE)
    assert sum(recorded[-10:]) / 10 < recorded[0] - 1.5


def test_every_curve_has_a_family() -> None:
    assert {path.name for path in CURVES.FOLDER.glob("*.txt")} == {CURVES.path(name).name for name in CURVES.FAMILIES}

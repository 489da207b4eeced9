"""The checks of dialects, curricula, kernels and commands: what `neox plugins new` writes passes, faults are named."""

import sys
from collections.abc import Callable
from importlib import import_module, invalidate_caches
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest
from neox_author import testing
from neox_author.new import kind_of, write_plugin
from neox_author.testing import clauses, dialects

from neox_core.config.read.load import Loaded
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.component import GROUP
from neox_core.hooks.loader import load_plugins

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")
Tried = tuple[Catalog, Any]


@pytest.fixture
def tried(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tried:
    """The catalogue of a new plugin of a kind, and the module of its component."""
    name = f"neox-small-{request.param}"
    package = name.replace("-", "_")
    for module in ("", ".plugin", ".component"):
        monkeypatch.delitem(sys.modules, f"{package}{module}", raising=False)
    catalog = load_plugins()
    folder, _ = write_plugin(catalog, kind_of(catalog, request.param), name, tmp_path)
    monkeypatch.syspath_prepend(folder)
    invalidate_caches()
    definer = [each for each in entry_points(group=GROUP) if each.dist and each.dist.name == "neox-kernels"]
    points = [EntryPoint(name, f"{package}.plugin", GROUP), *(definer if request.param == "kernel" else ())]
    monkeypatch.setattr(dialects, "check_light", lambda target: None)  # which start processes
    return load_plugins(points, {}), import_module(f"{package}.component")


def of(name: str, new: Callable[..., Any]) -> Callable[[Any], None]:
    """A component whose class has another method."""

    def plant(module: Any) -> None:
        (own,) = (each for key, each in vars(module).items() if key.startswith("Small"))
        setattr(own, name, new)

    return plant


def drops_all(self: Any, loaded: Loaded) -> Loaded:
    return Loaded({}, {}, loaded.problems)


def changes_its_argument(self: Any, loaded: Loaded) -> Loaded:
    loaded.values.pop("small_dialect_depth", None)
    return loaded


def counts(self: Any, step: int) -> int:
    self.calls = getattr(self, "calls", 0) + 1
    return min(self.calls, 9)


def choosing(samples: Callable[[int, int], Any]) -> Callable[[Any], None]:
    """A curriculum that chooses samples so."""

    def plant(module: Any) -> None:
        of("chooses", True)(module)
        of("samples", lambda self, step, pool: samples(step, pool))(module)

    return plant


FAULTS: list[tuple[str, str, Callable[[Any], None], str]] = [
    ("dialect", "small-dialect", of("translate", drops_all), "leaves a config without its keys as it is"),
    ("dialect", "small-dialect", of("translate", changes_its_argument), "leaves what it is given as it is"),
    ("dialect", "small-dialect", of("translate", lambda self, loaded: loaded), "takes the keys of `older` out"),
    (
        "dialect",
        "small-dialect",
        of("explain", lambda *args: None),
        "explain.. gives problems for each key",
    ),
    ("dialect", "small-dialect", of("explain", lambda *args: ()), "None for a key that is unknown to the dialect"),
    ("curriculum", "small-curriculum", of("sequence_length", lambda self, step: 65), "is from 1 to seq_length"),
    ("curriculum", "small-curriculum", of("sequence_length", counts), "each method is a function of the step"),
    ("curriculum", "small-curriculum", of("routed_layers", frozenset({9})), "`routed_layers` are layers, from 0"),
    ("curriculum", "small-curriculum", choosing(lambda step, pool: np.full(8, pool)), "below `pool`; not so at step 0"),
    ("curriculum", "small-curriculum", choosing(lambda step, pool: np.arange(7)), "below `pool`; not so at step 0"),
    (
        "curriculum",
        "small-curriculum",
        choosing(lambda step, pool: np.random.randint(0, pool, 8)),
        "each method is a function of the step.* not samples",
    ),
    ("kernel", "swiglu.small-kernel", of("why_not", lambda *args: "no"), "gives a tuple of reasons"),
    (
        "kernel",
        "swiglu.small-kernel",
        of("__call__", lambda self, x: x.chunk(2, -1)[0] * 1),
        "equals the reference",
    ),
    ("kernel", "swiglu.small-kernel", of("examples", lambda *args, large: iter(())), "examples.. gives large ones"),
    ("command", "small-command", lambda module: setattr(module.command, "help", None), "--help tells what it does"),
]


@pytest.mark.parametrize(("tried", "name", "plant", "said"), FAULTS, indirect=["tried"])
def test_a_fault_is_named(tried: Tried, name: str, plant: Callable[[Any], None], said: str) -> None:
    catalog, module = tried
    (kind,) = (each.kind for each in catalog.registry.entries() if each.plugin.id.startswith("neox-small"))
    check = getattr(testing, f"check_{kind}")
    told: dict[str, str] = {}
    with clauses.heard(told.setdefault):
        check(catalog, name)
    assert len(told) > 2
    plant(module)
    with pytest.raises(AssertionError, match=said):
        check(catalog, name)

"""Loading, in process: entry points that are modules made by the test."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from attrs import frozen, make_class
from attrs import validators as v

from neox_core.api import Component, ConfigSection, setting
from neox_core.errors import PluginError
from neox_core.hooks.guard import HeavyImportError, no_heavy_imports
from neox_core.hooks.kinds import KINDS
from neox_core.hooks.loader import load_plugins


@frozen
class Settings:
    speed: float = setting(0.5, help="How fast.")


def offer(*names: str, **options: Any) -> Any:
    return lambda: [Component(name, "math:floor", **options) for name in names]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_can_be_offered(point: Any, kind: Any) -> None:
    catalog = load_plugins([point("neox-a", **{kind.hook: offer("one", "two")})], {})
    assert [(entry.kind, entry.component.name) for entry in catalog.registry.entries()] == [
        (kind.name, "one"),
        (kind.name, "two"),
    ]
    assert catalog.find(kind.name, "two").load() is __import__("math").floor


def test_offers_keep_their_owner_and_come_in_the_order_of_ids(point: Any) -> None:
    points = [
        point("neox-b", neox_monitors=offer("n")),
        point("Neox_A", neox_monitors=offer("m"), neox_launchers=offer("k.x")),
    ]
    for order in (points, points[::-1]):
        catalog = load_plugins(order, {})
        assert [report.plugin.id for report in catalog.reports] == ["neox-a", "neox-b"]
        assert [entry.qualified for entry in catalog.registry.entries()] == ["neox-a:k.x", "neox-a:m", "neox-b:n"]


def test_an_entry_point_that_is_listed_twice_is_one(point: Any) -> None:
    twice = [point("neox-a", neox_monitors=offer("one"))] * 2
    catalog = load_plugins(twice, {})
    assert [report.status for report in catalog.reports] == ["ok"]
    assert [entry.qualified for entry in catalog.registry.entries()] == ["neox-a:one"]


def test_hooks_may_return_any_iterable(point: Any) -> None:
    def generate() -> Iterator[Component]:
        yield Component("one", "math:floor")

    catalog = load_plugins([point("neox-a", neox_monitors=generate, neox_config_sections=lambda: ())], {})
    assert [report.status for report in catalog.reports] == ["ok"]
    assert len(list(catalog.registry.entries())) == 1


@frozen
class Unmade:
    x: int = 1


@frozen
class Refused:
    x: int = setting(0, help="X.", check=v.gt(0))


Untyped = make_class("Untyped", {"x": setting(1, help="X.")}, frozen=True)


@pytest.mark.parametrize(
    ("hooks", "said"),
    [
        ({"neox_monitors": lambda: Component("one", "math:floor")}, "returns a list of Component"),
        ({"neox_monitors": lambda: ["one"]}, "returns a list of Component"),
        ({"neox_monitors": lambda: 3}, "returns a list of Component"),
        ({"neox_monitors": lambda: None}, "neox_monitors returned None; it returns a list of Component"),
        ({"neox_config_sections": lambda: None}, "neox_config_sections returned None; it returns a list of Config"),
        ({"neox_optimizers": offer("one", zero_stages=1)}, "zero_stages has to be a tuple of 0, 1, 2 or 3, not 1"),
        ({"neox_optimizers": offer("one", zero_stages=(4,))}, "zero_stages has to be a tuple of 0, 1, 2 or 3"),
        ({"neox_optimizers": offer("one", devices="cpu")}, "devices has to be a tuple of cpu or cuda, not 'cpu'"),
        ({"neox_optimizers": offer("one", state_numbers=2)}, "state_numbers has to be a tuple of two numbers"),
        ({"neox_monitors": offer("one", needs="yaml")}, "needs has to be a tuple of names of top-level modules"),
        ({"neox_monitors": offer("one", needs=("a.b",))}, "needs has to be a tuple of names of top-level modules"),
        ({"neox_monitors": offer("one", ops=("rms_norm", "a:b"))}, "ops has to be a tuple of pairs"),
        ({"neox_monitors": offer("one", summary=None)}, "summary has to be a str, not None"),
        ({"neox_monitors": offer("my one")}, "my one: name has to be a word such as my-name, not 'my one'"),
        ({"neox_monitors": lambda: [Component("one", len)]}, "one: target has to be an import path such as"),
        ({"neox_monitors": offer("one", planner=len)}, "one: planner has to be an import path such as"),
        ({"neox_config_sections": lambda: [Component("one", "math:floor")]}, "returns a list of ConfigSection"),
        ({"neox_monitors": offer("one", "one")}, "offers monitor 'one' twice"),
        ({"neox_monitors": offer("two words")}, "name"),
        ({"neox_monitors": lambda: [Component("one", "no path")]}, "target"),
        ({"neox_monitors": offer("one", settings=dict)}, "settings has to be an attrs class"),
        ({"neox_config_sections": lambda: [ConfigSection("s", dict)]}, "settings has to be an attrs class"),
        ({"neox_monitors": offer("one", settings=Unmade)}, "one: Unmade.x is not made by setting()"),
        ({"neox_monitors": offer("one", settings=Untyped)}, "one: Untyped.x has no type"),
        (
            {"neox_monitors": offer("one", settings=Refused)},
            "Refused.x has a default that its own check refuses: 'x' must",
        ),
        ({"neox_monitors": lambda: [setting(1, help="")]}, "setting(): no help"),
        (
            {"neox_monitors": lambda: [setting(1, help="X.", changes="all")]},
            "changes='all' is none of ('numerics', 'speed'",
        ),
        ({"neox_monitors": lambda wrong: []}, "wrong"),
        ({"neox_layouts": offer()}, "has a hook neox_layouts that neither this core nor an installed plugin defines"),
        ({}, "offers nothing"),
    ],
)
def test_a_wrong_offer_breaks_the_whole_plugin(point: Any, hooks: dict[str, Any], said: str) -> None:
    good = point("neox-good", neox_monitors=offer("good"))
    bad = point("neox-bad", neox_tokenizers=offer("kept"), **hooks) if hooks else point("neox-bad")
    catalog = load_plugins([bad, good], {})
    assert {report.plugin.id: report.status for report in catalog.reports} == {"neox-bad": "broken", "neox-good": "ok"}
    assert said in catalog.reports[0].cause
    assert "\n" not in catalog.reports[0].cause
    assert "Attribute(" not in catalog.reports[0].cause, "attrs puts its own innards into the error"
    assert [entry.qualified for entry in catalog.registry.entries()] == ["neox-good:good"]
    assert catalog.registry.sections == []
    assert len(catalog.manager.get_plugins()) == 1


def test_a_list_is_as_good_as_a_tuple(point: Any) -> None:
    """And hashable, as an offer that is a member of a set has to be."""
    given = {"zero_stages": [0, 1], "needs": ["math"], "ops": [["norm", "a:b"]]}
    (entry,) = load_plugins([point("neox-a", neox_optimizers=offer("one", **given))], {}).registry.entries()
    assert entry.component.zero_stages == (0, 1)
    assert {entry.component} == {
        Component("one", "math:floor", zero_stages=(0, 1), needs=("math",), ops=(("norm", "a:b"),))
    }


def test_debug_shows_the_authors_traceback(point: Any, monkeypatch: Any, capsys: Any) -> None:
    def broken() -> list[Component]:
        raise ValueError("within the plugin")

    load_plugins([point("neox-a", neox_monitors=broken)], {})
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setenv("NEOX_DEBUG", "1")
    load_plugins([point("neox-a", neox_monitors=broken)], {})
    assert 'raise ValueError("within the plugin")' in capsys.readouterr().err


def test_ctrl_c_while_listing_is_not_a_plugins_fault(point: Any) -> None:
    def interrupt() -> list[Component]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_plugins([point("neox-a", neox_monitors=interrupt)], {})


def test_the_guard_refuses_names_and_forgets_nothing() -> None:
    before = list(sys.meta_path)
    guard = no_heavy_imports("neox-a")
    with (
        pytest.raises(HeavyImportError, match="neox-a imports jax while it is being listed"),
        guard,
        suppress(Exception),
    ):
        __import__("jax")
    assert sys.meta_path == before
    with no_heavy_imports("neox-a"):
        import colorsys
    assert colorsys.__name__ in sys.modules


def catalog_of(point: Any, *plugins: str, **options: Any) -> Any:
    return load_plugins([point(name, neox_monitors=offer("one")) for name in plugins], options.get("off", {}))


def test_find_takes_the_owner_in_any_spelling(point: Any) -> None:
    catalog = catalog_of(point, "neox-a", "neox-b")
    with pytest.raises(PluginError, match="offered by neox-a unknown and neox-b unknown") as clash:
        catalog.find("monitor", "one")
    assert clash.value.hint == "write monitors: `neox-a:one` or `neox-b:one`"
    assert catalog.find("monitor", "Neox_B:one").plugin.id == "neox-b"
    with pytest.raises(PluginError, match="no monitor 'neox-c:one'"):
        catalog.find("monitor", "neox-c:one")


@pytest.mark.parametrize(("use", "near"), [("ome", "one"), ("ONE", "one")])
def test_find_guesses_what_was_meant(point: Any, use: str, near: str) -> None:
    with pytest.raises(PluginError) as error:
        catalog_of(point, "neox-a").find("monitor", use)
    assert error.value.hint == f"did you mean {near!r}?"


def test_find_names_all_that_could_have_it(point: Any) -> None:
    points = [point("neox-a"), point("neox-b", neox_monitors=offer("one")), point("neox-c", neox_monitors=offer("two"))]
    catalog = load_plugins(points, {"neox-c": "a test"})
    with pytest.raises(PluginError) as error:
        catalog.find("monitor", "two")
    assert "no monitor 'two'; installed: one" in error.value.message
    assert "neox-a unknown is broken: offers nothing" in error.value.message
    assert "neox-c unknown is disabled: switched off by a test" in error.value.message
    assert "neox-b" not in error.value.message
    assert len(catalog.warnings()) == 1


def test_require_lists_every_fault_at_once(point: Any) -> None:
    catalog = load_plugins([point("neox-a"), point("neox-b", neox_monitors=offer("one"))], {})
    catalog.require(["neox-b", "NEOX_B"])
    with pytest.raises(PluginError) as error:
        catalog.require(["neox-a", "neox-b", "neox-z"])
    assert [line.split()[1] for line in error.value.message.splitlines()] == ["neox-a", "neox-z"]
    assert error.value.exit_code == 3

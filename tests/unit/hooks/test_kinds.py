"""Kinds that plugins define, in process: whose count, and what becomes of those who offer components of them."""

from typing import Any

import pytest

from neox_core.api import Component, Kind
from neox_core.errors import PluginError
from neox_core.hooks import definitions
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.loader import load_plugins

REWARD = Kind("reward", "acme_rewards", key="reward")


def defines(*kinds: Any) -> Any:
    return lambda: list(kinds)


def offer(*names: str) -> Any:
    return lambda: [Component(name, "math:floor") for name in names]


def statuses(catalog: Catalog) -> dict[str, str]:
    return {report.plugin.id: report.status for report in catalog.reports}


def cause(catalog: Catalog, plugin: str) -> str:
    report = catalog.report(plugin)
    assert report is not None
    return f"{report.cause}; {report.hint}"


@pytest.mark.parametrize("names", [("neox-a", "neox-b"), ("neox-b", "neox-a")])
def test_the_definer_may_come_after_the_user(point: Any, names: tuple[str, str]) -> None:
    definer, user = names
    points = [point(definer, neox_kinds=defines(REWARD)), point(user, acme_rewards=offer("one", "two"))]
    catalog = load_plugins(points, {})
    assert statuses(catalog) == {"neox-a": "ok", "neox-b": "ok"}
    assert catalog.registry.definers["reward"].id == definer
    assert list(catalog.registry.kinds)[-1] == "reward"
    (one, two) = catalog.registry.entries("reward")
    assert (one.qualified, one.definition, two.component.name) == (f"{user}:one", REWARD, "two")
    assert catalog.find("reward", "one").plugin.id == user
    with pytest.raises(PluginError, match="did you mean 'one'"):
        catalog.find("reward", "onee")


def test_one_plugin_may_define_a_kind_and_offer_it(point: Any) -> None:
    catalog = load_plugins([point("neox-a", neox_kinds=defines(REWARD), acme_rewards=offer("one"))], {})
    assert [each.qualified for each in catalog.registry.entries("reward")] == ["neox-a:one"]


def test_two_components_of_one_name_clash_as_those_of_the_core(point: Any) -> None:
    points = [point("neox-a", neox_kinds=defines(REWARD), acme_rewards=offer("one"))]
    catalog = load_plugins([*points, point("neox-b", acme_rewards=offer("one"))], {})
    with pytest.raises(PluginError, match="'one' is offered by neox-a unknown and neox-b") as error:
        catalog.find("reward", "one")
    assert error.value.hint == "write reward: `neox-a:one` or `neox-b:one`"
    assert catalog.find("reward", "neox-b:one").plugin.id == "neox-b"


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Kind("reward", "other_rewards"), "name 'reward'"),
        (Kind("prize", "acme_rewards"), "hook 'acme_rewards'"),
        (Kind("prize", "prizes", key="reward"), "key 'reward'"),
    ],
)
def test_two_definers_clash_whatever_their_order(point: Any, other: Kind, said: str) -> None:
    points = [
        point("neox-a", neox_kinds=defines(REWARD), neox_monitors=offer("kept")),
        point("neox-c", neox_kinds=defines(other)),
        point("neox-b", acme_rewards=offer("one")),
        point("neox-d", neox_monitors=offer("good")),
    ]
    for order in (points, points[::-1]):
        catalog = load_plugins(order, {})
        assert statuses(catalog) == {"neox-a": "broken", "neox-b": "broken", "neox-c": "broken", "neox-d": "ok"}
        assert f"defines kind 'reward', whose {said} neox-c unknown defines too" in cause(catalog, "neox-a")
        assert f"whose {said} neox-a unknown defines too" in cause(catalog, "neox-c")
        assert "implements acme_rewards, a hook of neox-" in cause(catalog, "neox-b")
        assert [each.qualified for each in catalog.registry.entries()] == ["neox-d:good"]
        assert "reward" not in catalog.registry.kinds


def test_a_first_party_plugin_keeps_its_kind(point: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "first_party_hooks", lambda: {"acme_rewards": "neox-z"})
    points = [point("neox-a", neox_kinds=defines(REWARD)), point("neox-z", neox_kinds=defines(REWARD))]
    catalog = load_plugins([*points, point("neox-b", acme_rewards=offer("one"))], {})
    assert statuses(catalog) == {"neox-a": "broken", "neox-b": "ok", "neox-z": "ok"}
    catalog = load_plugins([point("neox-b", acme_rewards=offer("one"))], {})
    assert "implements acme_rewards, a hook of neox-z, which is not installed; install neox-z" in cause(
        catalog, "neox-b"
    )
    catalog = load_plugins([point("neox-b", acme_rewards=offer("one")), points[1]], {"neox-z": "a test"})
    assert "a hook of neox-z, which is disabled: switched off by a test" in cause(catalog, "neox-b")


def test_a_hook_that_nobody_defines_is_a_warning(point: Any) -> None:
    catalog = load_plugins([point("neox-b", acme_rewards=offer("one"), neox_monitors=offer("kept"))], {})
    (line,) = catalog.warnings()
    assert "neox-b unknown is broken: has a hook acme_rewards that neither this core nor" in line
    assert not list(catalog.registry.entries())


def test_the_name_of_a_plugins_hook_is_suggested(point: Any) -> None:
    points = [point("neox-b", acme_reward=offer("one")), point("neox-z", neox_kinds=defines(REWARD))]
    assert "did you mean acme_rewards?" in cause(load_plugins(points, {}), "neox-b")


@pytest.mark.parametrize("definer", ["neox-a", "neox-z"])
def test_who_offers_a_kind_of_a_broken_definer_is_broken_too(point: Any, definer: str) -> None:
    """Also through another definer: neox-c defines a kind and needs that of the first."""
    prize = Kind("prize", "prizes")
    points = [
        point(definer, neox_kinds=defines(REWARD), neox_monitors=lambda: [3]),
        point("neox-b", acme_rewards=offer("one")),
        point("neox-c", neox_kinds=defines(prize), acme_rewards=offer("two")),
        point("neox-d", prizes=offer("three"), neox_monitors=offer("gone")),
        point("neox-e", neox_monitors=offer("good")),
    ]
    for order in (points, points[::-1]):
        catalog = load_plugins(order, {})
        assert statuses(catalog) == {
            **dict.fromkeys((definer, "neox-b", "neox-c", "neox-d"), "broken"),
            "neox-e": "ok",
        }
        assert f"a hook of {definer}, which is broken: neox_monitors returned" in cause(catalog, "neox-b")
        assert "a hook of neox-c, which is broken: implements acme_rewards" in cause(catalog, "neox-d")
        assert [each.qualified for each in catalog.registry.entries()] == ["neox-e:good"]
        assert len(catalog.manager.get_plugins()) == 1


@pytest.mark.parametrize(
    ("kinds", "said"),
    [
        (lambda: [Kind("optimizer", "acme")], "whose name 'optimizer' is one of neox-core"),
        (lambda: [Kind("prize", "neox_optimizers")], "whose hook 'neox_optimizers' is one of neox-core"),
        (lambda: [Kind("prize", "neox_check_config")], "whose hook 'neox_check_config' is one of neox-core"),
        (lambda: [Kind("prize", "prizes", key="optimizer.type")], "whose key 'optimizer.type' is one of neox-core"),
        (lambda: [REWARD, Kind("prize", "acme_rewards")], "is one of its kind 'reward'"),
        (lambda: [Kind("prize", "prizes", plans=True)], "with plans"),
        (lambda: [Kind("prize", "prizes", comes_with="optimizer")], "with comes_with"),
        (lambda: [Kind("Prize", "prizes")], "name"),
        (lambda: [Kind("prize", "prizes of a kind")], "hook"),
        (lambda: [Kind("prize", "prizes", key="a-b")], "key"),
        (lambda: [Kind("prize", "prizes", contracts="x.y:Z")], "contracts"),
        (lambda: [Kind("prize", "prizes", many=1)], "many"),
        (lambda: ["prize"], "returns a list of Kind"),
        (lambda: None, "neox_kinds returned None; it returns a list of Kind"),
    ],
)
def test_a_wrong_kind_breaks_its_plugin_alone(point: Any, kinds: Any, said: str) -> None:
    points = [point("neox-a", neox_kinds=kinds, neox_monitors=offer("gone")), point("neox-b", neox_monitors=offer("m"))]
    catalog = load_plugins(points, {})
    assert statuses(catalog) == {"neox-a": "broken", "neox-b": "ok"}
    assert said in cause(catalog, "neox-a")
    assert [each.qualified for each in catalog.registry.entries()] == ["neox-b:m"]


def test_an_optional_hook_needs_no_definer(point: Any) -> None:
    from neox_core.api import hookimpl

    optional = point("neox-b", neox_monitors=offer("m"))
    module = optional.load()
    module.acme_rewards = hookimpl(optionalhook=True)(offer("one"))
    assert statuses(load_plugins([optional], {})) == {"neox-b": "ok"}
    catalog = load_plugins([optional, point("neox-z", neox_kinds=defines(REWARD))], {})
    assert [each.qualified for each in catalog.registry.entries("reward")] in ([], ["neox-b:one"])

"""Rules that plugins bring: when they are asked, and what is said of one that fails."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen
from neox_author.try_rules import rule_faults

from neox_core.api import Component, ConfigSection, Problem, hookimpl, setting
from neox_core.errors import PluginError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.rules import plugins as rules


@frozen
class PaceSection:
    pace: int = setting(1, help="How fast.")


Check = Callable[..., list[str]]


def test_the_rules_of_plugins(check: Check) -> None:
    assert check("extra-level=10") == ["--set: error: extra-level: is more than the plugin can do (9 or less)"]
    assert check("extra-level=9") == []


def test_a_key_of_a_plugin_that_nothing_reads_is_refused(check: Check, plugins: Any, everything: Any) -> None:
    class Unread:
        @hookimpl
        def neox_config_sections(self) -> list[ConfigSection]:
            return [ConfigSection("pace", PaceSection)]

    catalog = plugins(everything=everything, unread=Unread())
    assert check(catalog=catalog) == []
    (said,) = check("pace=3", catalog=catalog)
    assert said.startswith("--set: error: pace: nothing reads it in unread unknown")

    class Read(Unread):
        @hookimpl
        def neox_check_config(self, config: Any) -> list[Problem]:
            return [Problem("too quick", "pace")] if config.value("pace") > 3 else []

    assert check("pace=3", catalog=plugins(everything=everything, unread=Read())) == []


def test_the_rules_of_plugins_wait_until_all_sections_are_valid(check: Check) -> None:
    assert len(check("extra-level=10", "seed=x")) == 1


class Faulty:
    """A plugin with a rule, and with offers of which a config may use none."""

    def __init__(self, rule: Callable[[Any], Any], *offers: str) -> None:
        self.rule, self.offers = rule, offers
        for hook in {"neox_norms", "neox_config_sections"} - set(offers):
            setattr(self, hook, None)

    @hookimpl
    def neox_check_config(self, config: Any) -> Any:
        return self.rule(config)

    @hookimpl
    def neox_norms(self) -> list[Component]:
        return [Component("faulty", "math:floor")]

    @hookimpl
    def neox_config_sections(self) -> list[ConfigSection]:
        return [ConfigSection("pace", PaceSection)]


@pytest.mark.parametrize(
    ("rule", "cause"),
    [
        (lambda config: config.value("oops"), "KeyError: 'oops'"),
        (lambda config: ["no"], "TypeError: neox_check_config returned 'no' in place of a Problem"),
        (lambda config: [Problem("no", severity="fatal")], "ValueError: 'severity' must be in ("),
        (lambda config: [Problem(3)], "TypeError: neox_check_config returned Problem(message=3"),
        (lambda config: None, "TypeError: neox_check_config returned None; it returns a list of problems"),
    ],
)
def test_a_plugins_rule_that_fails_names_the_plugin(
    check: Check, plugins: Any, everything: Any, rule: Any, cause: str
) -> None:
    catalog = plugins(everything=everything, faulty=Faulty(rule))
    (found,) = check(catalog=catalog)
    assert found.startswith(f"error: the rules of plugin faulty failed: {cause}")
    assert "NEOX_PLUGINS_DISABLE=faulty switches it off" in found
    assert "Attribute(" not in found
    assert [each.message for each in rule_faults(catalog)] == [found.removeprefix("error: ").partition(" (tell")[0]]


def test_rules_that_loop_for_ever_are_named(
    check: Check, plugins: Any, everything: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "RULES_S", 0.1)
    (found,) = check(catalog=plugins(everything=everything, faulty=Faulty(lambda config: [None for _ in iter(int, 1)])))
    assert found.startswith("error: plugin faulty takes longer than 0.1 s to say what its rules find")
    assert "tell the author of faulty" in found


def test_the_systems_error_about_a_file_is_not_the_plugins_fault(check: Check, plugins: Any, everything: Any) -> None:
    catalog = plugins(everything=everything, faulty=Faulty(lambda config: Path("a" * 300).stat()))
    (found,) = check(catalog=catalog)
    assert found.startswith(f"error: {'a' * 300}: File name too long (move it away")


def test_the_fault_of_a_component_that_rules_meet_is_not_theirs(check: Check, plugins: Any, everything: Any) -> None:
    def rule(config: Any) -> Any:
        raise PluginError("store mine:box 1 names no planner", hint="tell its author")

    (found,) = check(catalog=plugins(everything=everything, faulty=Faulty(rule)))
    assert found == "error: store mine:box 1 names no planner (tell its author)"


def test_the_rules_of_a_plugin_that_is_not_used_are_not_asked(check: Check, plugins: Any, everything: Any) -> None:
    def rule(config: Any) -> list[Problem]:
        return [Problem("asked", "seed")]

    catalog = plugins(everything=everything, faulty=Faulty(rule, "neox_norms", "neox_config_sections"))
    assert check(catalog=catalog) == []
    for used in ("norm=faulty", "pace=2", "plugins.require=[faulty]"):
        assert [each for each in check(used, catalog=catalog) if "seed: asked" in each], used


def test_the_rules_of_every_plugin_can_be_tried(plugins: Any, everything: Any) -> None:
    assert list(rule_faults(load_plugins())) == []

    def of_its_norm(config: Any) -> list[Problem]:
        (norm,) = config.components("norm")
        return [] if norm.entry.component.name != "faulty" else norm.settings.speed

    catalog = plugins(everything=everything, faulty=Faulty(of_its_norm, "neox_norms"))
    (fault,) = rule_faults(catalog)
    assert "'NoneType' object has no attribute 'speed'" in fault.message


def test_debug_shows_the_traceback_of_a_rule(
    check: Check, plugins: Any, everything: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    catalog = plugins(everything=everything, faulty=Faulty(lambda config: 1 // 0))
    check(catalog=catalog)
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setenv("NEOX_DEBUG", "1")
    check(catalog=catalog)
    assert "self.rule(config)" in capsys.readouterr().err


def test_a_broken_plugin_that_is_not_needed_is_one_warning(check: Check, plugins: Any, everything: Any) -> None:
    class Broken:
        @hookimpl
        def neox_norms(self) -> list[Any]:
            raise RuntimeError("no")

    both = plugins(everything=everything, broken=Broken())
    assert check(catalog=both) == ["warning: plugin broken unknown is broken: RuntimeError: no"]
    assert any("broken unknown is broken" in line for line in check("plugins.require=[broken]", catalog=both))


class HalfAPlanner:
    """An engine whose planner lacks most of its contract."""

    rules = ()
    recomputes = False


HALF = HalfAPlanner()


def test_a_planner_that_lacks_a_part_is_named(check: Check, plugins: Any, everything: Any) -> None:
    class Half:
        @hookimpl
        def neox_engines(self) -> list[Component]:
            return [Component("half", "nowhere.at_all:Half", planner=f"{__name__}:HALF")]

    with pytest.raises(PluginError) as error:
        check("engine=half", catalog=plugins(everything=everything, half=Half()))
    assert error.value.message.startswith("engine half:half unknown: its planner ")
    assert error.value.message.endswith("has no sharding, precision, plan, memory, key_of")


def test_a_scheduler_that_lacks_a_module_is_named_before_it_is_asked(
    check: Check, plugins: Any, everything: Any
) -> None:
    class Far:
        @hookimpl
        def neox_schedulers(self) -> list[Component]:
            return [Component("far", f"{__name__}:Telling", needs=("nowhere_at_all",))]

    with pytest.raises(PluginError, match=r"^scheduler far:far needs nowhere_at_all, not installed"):
        check("scheduler.type=far", catalog=plugins(everything=everything, far=Far()))


def test_two_callbacks_that_decide_the_batch_are_refused(check: Check, plugins: Any, everything: Any) -> None:
    class Two:
        @hookimpl
        def neox_callbacks(self) -> list[Component]:
            return [Component(name, "nowhere.at_all:Made", planner="nowhere.at_all:plan") for name in ("one", "two")]

    (said,) = check("callbacks=[one, two]", catalog=plugins(everything=everything, two=Two()))
    assert "error: callbacks: one and two each decide the batch (keep one of them)" in said


class Telling:
    """A callback whose planner does what `tells` does."""

    tells: Callable[..., Any]

    @hookimpl
    def neox_callbacks(self) -> list[Component]:
        return [Component("telling", "nowhere.at_all:Made", planner=f"{__name__}:Telling.tells")]


@pytest.mark.parametrize(
    ("tells", "said"),
    [
        (lambda *about: 3, "TypeError: it gives 3 in place of BatchPlan"),
        (lambda: None, "TypeError: .*takes 0 positional arguments but 3 were given"),
        (lambda *about: {}["a\x1b[2J"], r"KeyError: 'a\\x1b\[2J' \([a-z_.]*test_rules_of_plugins, line \d+\)"),
        (lambda *about: sys.exit(0), "SystemExit: 0"),
    ],
)
def test_whatever_a_planner_does_names_it(
    check: Check, plugins: Any, everything: Any, monkeypatch: pytest.MonkeyPatch, tells: Any, said: str
) -> None:
    monkeypatch.setattr(Telling, "tells", staticmethod(tells), raising=False)
    with pytest.raises(PluginError, match=rf"^the planner of callback telling:telling unknown failed: {said}"):
        check("callbacks=[telling]", catalog=plugins(everything=everything, telling=Telling()))
    monkeypatch.setattr(Telling, "tells", staticmethod(lambda *about: None))
    assert check("callbacks=[telling]", catalog=plugins(everything=everything, telling=Telling())) == []

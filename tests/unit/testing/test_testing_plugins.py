"""The part of the test kit that loads plugins, against good and bad ones."""

import json
from typing import Any

import pytest
from attrs import frozen
from attrs import validators as v
from neox_author.testing import build, load_only

from neox_core.api import Component, setting
from neox_core.errors import ConfigError, PluginError
from neox_core.hooks.registry import Entry, PluginInfo

LISTING = """
{first}
from neox_core.api import Component, hookimpl

@hookimpl
def neox_monitors():
    return [Component("n", "neox_x.n:n")]
"""


def in_site(site: Any, call: str, *, kit: bool = True) -> str:
    """What a test in the site makes of a call of the kit: "fine", or the error's class and text."""
    if kit:
        site.install_ours("neox-author")
    code = f"""
import json
from pathlib import Path
from neox_core import testing
try:
    {call}
except (AssertionError, Exception) as error:
    print(json.dumps(type(error).__name__ + ": " + str(error)))
else:
    print(json.dumps("fine"))
"""
    done = site.python("-c", code, env={"NEOX_PLUGINS_DISABLE": "neox-switched-off"})
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("", "fine"),
        ("import torch", "neox-x imports torch"),
        ("try:\n    import numpy\nexcept Exception:\n    numpy = None", "neox-x imports numpy"),
        ("import sys; sys.modules['deepspeed'] = sys", "listing neox-x is not light: deepspeed"),
        ("1 / 0", "division by zero"),
    ],
)
def test_assert_light(site: Any, first: str, said: str) -> None:
    site.install("neox-x", LISTING.format(first=first))
    result = in_site(site, "testing.assert_light('neox-x')")
    assert said in result
    assert result == "fine" or result.startswith("AssertionError: listing neox-x is not light: ")


def test_assert_light_of_a_plugin_that_is_not_installed(site: Any) -> None:
    assert "required and not installed" in in_site(site, "testing.assert_light('neox-x')")


def test_load_only_loads_nothing_else(site: Any) -> None:
    site.install("neox-x", LISTING.format(first=""))
    site.install("neox-y", LISTING.format(first="raise RuntimeError"))
    site.install("neox-switched-off", LISTING.format(first=""))
    ids = "[report.plugin.id for report in testing.load_only('Neox_X', 'neox-switched-off').reports]"
    assert in_site(site, f"assert {ids} == ['neox-switched-off', 'neox-x'], {ids}") == "fine"
    assert "neox-y 1.0 is broken: RuntimeError" in in_site(site, "testing.load_only('neox-y')")


def test_load_only_of_nothing_installed() -> None:
    with pytest.raises(PluginError, match="plugin neox-none is required and not installed"):
        load_only("neox-none")


@frozen
class Settings:
    lr: float = setting(0.1, help="Rate.", check=v.gt(0))
    eps: float = setting(1e-8, help="Epsilon.", check=v.gt(0))


def entry(kind: str, settings: type | None) -> Entry:
    return Entry(kind, Component("C", "math:floor", settings), PluginInfo("neox-x", "1.0", "x"))


def test_build_is_strict_and_complete() -> None:
    assert build(entry("optimizer", Settings), lr=1) == Settings(lr=1.0, eps=1e-8)
    with pytest.raises(ConfigError) as error:
        build(entry("optimizer", Settings), lr="0.1", eps=-1, betas=2)
    for key in ("optimizer.params.lr", "optimizer.params.eps", "optimizer.params.betas"):
        assert key in error.value.message
    with pytest.raises(ConfigError, match=r"error: eps"):
        build(entry("norm", Settings), eps=-1)


def test_build_without_settings() -> None:
    assert build(entry("norm", None)) is None
    with pytest.raises(ConfigError, match="neox-x:C has no settings; got eps"):
        build(entry("norm", None), eps=1)


def test_a_check_that_is_not_installed_names_its_package(site: Any) -> None:
    call = "testing.check_monitor"
    said = in_site(site, call, kit=False)
    assert said.endswith("check_monitor is in neox_author.testing now: install neox-author")
    assert in_site(site, call) == "fine"

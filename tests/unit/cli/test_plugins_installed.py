"""Installed throw-away distributions, good and bad, against every command that meets them."""

import json
import os
import pty
import subprocess
import sys
from typing import Any

import pytest

SETTINGS = """
from attrs import frozen
from attrs import validators as v
from neox_core.api import Component, ConfigSection, hookimpl, setting

@frozen
class Settings:
    speed: float = setting(0.5, help="How fast.", unit="steps/s", check=v.gt(0))
    names: tuple[str, ...] = setting(("a", "b"), help="What to call it.")
    level: int = setting(help="How much.")
"""


@pytest.fixture
def site(site: Any) -> Any:
    """With the commands `neox plugins info` and `check`."""
    site.install_ours("neox-author")
    return site


def rows(site: Any, *argv: str, **options: Any) -> list[dict[str, str]]:
    """What is listed of the other plugins."""
    done = site.neox("plugins", "list", "--json", *argv, **options)
    assert done.returncode == 0, done.stderr
    return [row for row in json.loads(done.stdout) if row["plugin"] != "neox-author"]


def test_a_plugin_that_fails(failing: Any) -> None:
    """Alone: the other one is there, and each command tells what happened."""
    as_json, plain, of_plugin, of_component, check = failing.site.neox_each(
        ["plugins", "list", "--json"],
        ["plugins", "list", "--kind", "optimizer"],
        ["plugins", "info", "neox-bad"],
        ["plugins", "info", "Bad"],
        ["plugins", "check"],
    )
    assert as_json["exit_code"] == 0
    listed = {row["plugin"]: row for row in json.loads(as_json["stdout"])}
    assert listed.keys() == {"neox-author", "neox-good", "neox-bad"}
    assert (listed["neox-good"]["name"], listed["neox-good"]["status"]) == ("Good", "ok")
    bad = listed["neox-bad"]
    assert (bad["kind"], bad["name"], bad["version"], bad["status"]) == ("", "", "1.0", failing.status)
    assert failing.cause in bad["summary"]

    lines = [line.split("\t") for line in plain["stdout"].splitlines()]
    assert [line[2:5] for line in lines] == [["neox-good", "1.0", "ok"], ["neox-bad", "1.0", failing.status]]

    assert of_plugin["exit_code"] == 0
    assert f"status    {failing.status}" in of_plugin["stdout"]
    assert failing.cause in of_plugin["stdout"]
    assert failing.hint in of_plugin["stdout"]

    assert of_component["exit_code"] == 3
    assert "nothing is called 'Bad'" in of_component["stderr"]
    assert f"neox-bad 1.0 is {failing.status}" in of_component["stderr"]
    assert failing.cause in of_component["stderr"]

    assert check["exit_code"] == 3
    assert f"fault: plugin neox-bad 1.0 is {failing.status}: " in check["stdout"]
    assert failing.cause in check["stdout"]
    assert failing.hint in check["stdout"]
    assert "3 plugins, 5 offers, 1 fault" in check["stdout"]


def test_nothing_but_the_commands(site: Any) -> None:
    assert rows(site) == []
    info = site.neox("plugins", "info", "Adam")
    assert info.returncode == 3
    assert "nothing is called 'Adam'" in info.stderr
    check = site.neox("plugins", "check")
    assert (check.returncode, check.stdout) == (0, "1 plugin, 4 offers, 0 faults\n")


def test_two_distributions_with_one_entry_point_name(site: Any, install: Any) -> None:
    install(site, "neox-a", "One", entry_points={"lion": "neox_a.plugin"})
    install(site, "neox-b", "Two", entry_points={"lion": "neox_b.plugin"})
    assert [(row["name"], row["plugin"], row["status"]) for row in rows(site)] == [
        ("One", "neox-a", "ok"),
        ("Two", "neox-b", "ok"),
    ]
    assert "plugin    neox-b 1.0" in site.neox("plugins", "info", "Two").stdout
    assert site.neox("plugins", "check").stdout == "3 plugins, 6 offers, 0 faults\n"


def test_two_distributions_with_one_module(site: Any, install: Any) -> None:
    install(site, "neox-a", "One")
    site.install("neox-b", "", entry_points={"b": "neox_a.plugin"})
    assert [(row["name"], row["plugin"], row["status"]) for row in rows(site)] == [
        ("One", "neox-a", "ok"),
        ("", "neox-b", "broken"),
    ]
    assert "neox_a.plugin is already registered by neox-a/neox_a" in site.neox("plugins", "check").stdout


def test_plugins_come_in_the_order_of_their_ids(site: Any, install: Any) -> None:
    install(site, "neox-b", "One", "1 / 0", entry_points={"a": "neox_b.plugin"})
    install(site, "neox-a", "Two", "1 / 0", entry_points={"z": "neox_a.plugin"})
    assert [row["plugin"] for row in rows(site)] == ["neox-a", "neox-b"]


def test_two_entry_points_of_one_distribution(site: Any, offering: Any) -> None:
    more = {"neox_a/second.py": offering("Two", "neox_a"), "neox_a/parts.py": "thing = print"}
    points = {"one": "neox_a.plugin", "two": "neox_a.second"}
    site.install("neox-a", offering("One", "neox_a"), more, entry_points=points)
    assert [(row["name"], row["plugin"]) for row in rows(site)] == [("One", "neox-a"), ("Two", "neox-a")]


def test_two_plugins_with_one_component(site: Any, install: Any) -> None:
    install(site, "neox-a", "Lion")
    install(site, "neox-b", "Lion", version="2.5")
    assert [(row["name"], row["plugin"], row["status"]) for row in rows(site)] == [
        ("Lion", "neox-a", "clash"),
        ("Lion", "neox-b", "clash"),
    ]
    both = site.neox("plugins", "info", "Lion").stdout
    assert "plugin    neox-a 1.0" in both
    assert "clash     offered too as neox-b:Lion" in both
    assert "plugin    neox-b 2.5" in both
    one = site.neox("plugins", "info", "neox-b:Lion").stdout
    assert "plugin    neox-b 2.5" in one
    assert "plugin    neox-a" not in one
    assert "use       optimizer.type: neox-b:Lion" in one
    check = site.neox("plugins", "check")
    assert check.returncode == 3
    assert "fault: optimizer 'Lion' is offered by neox-a 1.0 and neox-b 2.5" in check.stdout
    assert "`neox-a:Lion` or `neox-b:Lion`" in check.stdout


SECTION = (
    SETTINGS
    + """
@hookimpl
def neox_config_sections():
    return [ConfigSection("{name}", Settings, summary="made for a test")]
"""
)


def test_two_sections_with_one_key(site: Any) -> None:
    for name in ("neox-a", "neox-b"):
        site.install(name, SECTION.replace("{name}", f"of-{name}"))
    assert [(row["kind"], row["name"], row["status"]) for row in rows(site, "--kind", "config-section")] == [
        ("config section", "of-neox-a", "clash"),
        ("config section", "of-neox-b", "clash"),
    ]
    info = site.neox("plugins", "info", "of-neox-a").stdout
    assert "clash     the key 'speed' is owned by neox-b:of-neox-b too" in info
    check = site.neox("plugins", "check")
    assert check.returncode == 3
    for key in ("speed", "names", "level"):
        named = f"config key {key!r} is owned by neox-a 1.0 (section of-neox-a) and neox-b 1.0 (section of-neox-b)"
        assert named in check.stdout
    assert "NEOX_PLUGINS_DISABLE=neox-b" in check.stdout
    alone = site.neox("plugins", "check", env={"NEOX_PLUGINS_DISABLE": "neox-b"})
    assert (alone.returncode, "0 faults" in alone.stdout) == (0, True)


def test_a_section_that_takes_a_key_of_the_core(site: Any) -> None:
    site.install("neox-a", SECTION.replace("{name}", "mine").replace("speed:", "seq_length:"))
    check = site.neox("plugins", "check")
    assert check.returncode == 3
    assert "seq-length has two owners: neox-core" in check.stdout


OPS = """
from neox_core.api import Component, hookimpl
@hookimpl
def neox_monitors():
    ops = ("bias_dropout_add", "math:floor"), ("cross_entropy", "math:floor")
    return [Component("fine", "math:floor", ops=ops)]
"""


def test_check_finds_settings_that_no_config_could_write_and_kernels_without_an_op(site: Any) -> None:
    kernels = """
@hookimpl
def neox_kernels():
    return [Component(name, "math:floor") for name in ("bias_dropout_ad.mine", "mine", "cross_entropy.mine")]
"""
    wrong = SECTION.replace("{name}", "mine").replace("speed: float = setting(0.5", "speed: int = setting(0.5")
    wrong = wrong.replace("names: tuple[str, ...]", "names: set")
    site.install("neox-a", wrong + kernels)
    site.install("neox-b", OPS)
    site.install_ours("neox-kernels")
    done = site.neox("plugins", "check")
    assert done.returncode == 3
    assert "config section neox-a:mine: Settings.speed: its default must be a whole number, not 0.5" in done.stdout
    assert "config section neox-a:mine: Settings.names: a setting cannot have the type <class 'set'>" in done.stdout
    assert "kernel neox-a:mine: its name is not <op>.<implementation>" in done.stdout
    assert "kernel neox-a:bias_dropout_ad.mine: nothing installed has an op bias_dropout_ad\n" in done.stdout
    assert "did you mean bias_dropout_add?" in done.stdout
    assert "4 faults" in done.stdout


def test_info_shows_settings_with_types_defaults_units_and_help(site: Any) -> None:
    site.install("neox-a", SECTION.replace("{name}", "pace"))
    lines = [line.split(None, 1) for line in site.neox("plugins", "info", "pace").stdout.splitlines()]
    shown = {line[0]: " ".join(line[1].split()) for line in lines if len(line) == 2}
    assert shown["speed"] == "number 0.5 How fast. [steps/s]"
    assert shown["names"] == "list of text ['a', 'b'] What to call it."
    assert shown["level"] == "whole number required How much."


@pytest.mark.parametrize("switch", ["environment", "pyproject"])
def test_a_plugin_that_is_switched_off(good: Any, switch: str, install: Any) -> None:
    install(good, "neox-bad", "Bad", "raise ValueError('is not even imported')")
    env = {}
    if switch == "environment":
        env["NEOX_PLUGINS_DISABLE"] = "Neox_Bad, neox-absent"
    else:
        (good.work.parent / "pyproject.toml").write_text('[tool.neox]\ndisable = ["neox.bad", "neox-absent"]\n')
    where = "NEOX_PLUGINS_DISABLE" if switch == "environment" else str(good.work.parent / "pyproject.toml")
    listed = rows(good, env=env)
    assert [(row["plugin"], row["status"]) for row in listed] == [("neox-good", "ok"), ("neox-bad", "disabled")]
    assert listed[1]["summary"] == f"switched off by {where}"
    info = good.neox("plugins", "info", "neox-bad", env=env)
    assert info.returncode == 0
    assert f"switched off by {where}" in info.stdout
    check = good.neox("plugins", "check", env=env)
    assert check.returncode == 0, check.stdout
    assert f"note: plugin neox-bad is switched off by {where}" in check.stdout
    assert "neox-absent, which is not installed" in check.stdout


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.neox\n", "cannot read [tool.neox]"),
        ('[tool.neox]\ndisable = "neox-good"\n', "[tool.neox] is {'disable': 'neox-good'}"),
        ('[tool.neox]\ndisabled = ["neox-good"]\n', "its only setting is a list of names"),
    ],
)
def test_a_pyproject_that_cannot_be_read(good: Any, text: str, said: str) -> None:
    (good.work / "pyproject.toml").write_text(text)
    for argv in (["list"], ["info", "Good"], ["check"]):
        done = good.neox("plugins", *argv)
        assert done.returncode == 3
        assert said in done.stderr
        assert "Traceback" not in done.stderr
    assert good.neox("--help").returncode == 0


def test_a_kind_that_is_not_used_yet_is_said_to_be(good: Any, offering: Any) -> None:
    source = offering("x", "neox_k").replace("neox_optimizers", "neox_letters")
    defined = "@hookimpl\ndef neox_kinds():\n    return [Kind('old letter', 'neox_letters', used=False)]\n"
    good.install("neox-letters", f"from neox_core.api import Kind, hookimpl\n{defined}")
    good.install("neox-k", source, {"neox_k/parts.py": "thing = print"})
    (row,) = rows(good, "--kind", "old-letter")
    assert (row["name"], row["status"]) == ("x", "not used yet")
    assert "none yet" in good.neox("plugins", "info", "x").stdout
    assert "uses no old letter yet" in good.neox("plugins", "check").stdout


TORCH = "import pathlib\npathlib.Path(__file__).with_name('was-imported').touch()\n"


def test_listing_imports_no_heavy_library(good: Any) -> None:
    for name in ("torch", "numpy", "deepspeed"):
        good.install(name, "", {f"{name}/__init__.py": TORCH}, entry_points={})
    code = (
        "import sys\nfrom neox_core.cli.main import neox\n"
        "try:\n    neox.main(['plugins', 'list'])\nfinally:\n    print(sorted(sys.modules))"
    )
    done = good.python("-c", code)
    modules = done.stdout.splitlines()[-1]
    assert "'neox_good.plugin'" in modules
    assert not any(f"'{name}'" in modules for name in ("torch", "numpy", "deepspeed", "rich", "ruamel.yaml"))
    assert not list(good.folder.glob("*/was-imported"))


def test_what_a_plugin_prints_does_not_reach_the_output(good: Any, install: Any) -> None:
    install(good, "neox-loud", "Loud", "print('hello, I am here')")
    done = good.neox("plugins", "list", "--json")
    assert {row["name"] for row in json.loads(done.stdout)} >= {"Good", "Loud"}
    assert "hello" in done.stderr


def test_a_folder_twice_on_the_path(good: Any) -> None:
    twice = os.pathsep.join(map(str, (good.folder, good.folder, good.libraries)))
    done = good.neox("plugins", "check", env={"PYTHONPATH": twice})
    assert (done.returncode, done.stdout) == (0, "2 plugins, 5 offers, 0 faults\n")


def test_the_same_wheel_by_pip(site: Any, offering: Any) -> None:
    """The other tests unpack wheels; this one lets pip do it."""
    wheel = site.wheel(
        "neox-good",
        {
            "neox_good/__init__.py": "",
            "neox_good/plugin.py": offering("Good", "neox_good"),
            "neox_good/parts.py": "thing = print\n",
        },
    )
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(site.folder)]
    subprocess.run([*command, str(wheel)], check=True, timeout=60)
    assert site.neox("plugins", "check").stdout == "2 plugins, 5 offers, 0 faults\n"


def test_unknown_names_and_kinds_are_guessed(good: Any) -> None:
    kind = good.neox("plugins", "list", "--kind", "optimiser")
    assert kind.returncode == 2
    assert "did you mean 'optimizer'?" in kind.stderr
    name = good.neox("plugins", "info", "good")
    assert name.returncode == 3
    assert "did you mean 'Good'?" in name.stderr


def test_a_terminal_gets_a_table(good: Any, install: Any) -> None:
    install(good, "neox-bad", "Bad", "raise ValueError('\\x1b]0;owned\\x07 [red]')")
    main, side = pty.openpty()
    try:
        code = (
            "import os, sys; os.dup2(int(sys.argv[1]), 1); from neox_core.cli.main import neox;"
            "neox.main(['plugins', 'list'])"
        )
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (good.folder, good.libraries))), "COLUMNS": "100"}
        command = [sys.executable, "-S", "-c", code, str(side)]
        subprocess.run(command, env=env, cwd=good.work, pass_fds=[side], check=True, timeout=60)
        text = os.read(main, 100_000).decode()
    finally:
        os.close(main)
        os.close(side)
    assert "optimizer" in text
    assert "\x1b]" not in text
    for word in (
        "name",
        "plugin",
        "version",
        "status",
        "summary",
        "Good",
        "made for a test",
        "\\x1b]0;owned\\x07 [red]",
    ):
        assert word in text
    assert "\t" not in text


def test_a_name_that_is_switched_off_and_not_there_is_told(site: Any, install: Any) -> None:
    install(site, "neox-good", "Good")
    env = {"NEOX_PLUGINS_DISABLE": "neox-godo", "NEOX_DISABLE_PLUGINS": "neox-good"}
    said = "NEOX_PLUGINS_DISABLE switches off neox-godo, which is not installed"
    (listed, checked) = site.neox_each(["plugins", "list"], ["plugins", "check"], env=env)
    assert f"warning: {said}; did you mean 'neox-good'?" in listed["stderr"]
    assert f"note: {said}\n  did you mean 'neox-good'?" in checked["stdout"]
    assert "warning: NEOX_DISABLE_PLUGINS is set, which neox does not read; did you mean" in listed["stderr"]

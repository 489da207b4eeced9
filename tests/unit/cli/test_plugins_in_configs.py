"""What `config check` and `train --dry-run` make of plugins that fail, clash, or are switched off."""

from typing import Any


def commands(*files: str) -> list[list[str]]:
    return [argv for file in files for argv in (["config", "check", file], ["train", "--dry-run", file])]


def test_a_plugin_that_fails(failing: Any, prepare: Any, using: Any) -> None:
    """One warning where the config does not use it; an error with its cause where the config uses or requires it."""
    prepare(failing.site)
    using(failing.site, "Bad", file="used.yml")
    using(failing.site, '"neox-bad:Bad"', file="named.yml")
    using(failing.site, "Fine", "plugins: {require: [neox-good, neox-bad, neox-absent]}\n", file="required.yml")
    results = failing.site.neox_each(*commands("run.yml", "used.yml", "named.yml", "required.yml"))
    unused, used, required = results[:2], results[2:6], results[6:]
    for done in unused:
        assert done["exit_code"] == 0, done["stdout"] + done["stderr"]
        lines = [line for line in done["stderr"].splitlines() if "neox-bad" in line]
        assert len(lines) == 1, done["stderr"]
        assert f"warning: plugin neox-bad 1.0 is {failing.status}: " in lines[0]
        assert failing.cause in lines[0]
    for done in used + required:
        assert done["exit_code"] == 3, done["stdout"] + done["stderr"]
        assert f"neox-bad 1.0 is {failing.status}" in done["stderr"]
        assert failing.cause in done["stderr"]
        assert "Traceback" not in done["stderr"]
    for done in used:
        assert "optimizer.type" in done["stderr"]
    for done in used[2:]:
        assert "no optimizer" not in done["stderr"], "the plugin is known, so nothing is guessed"
    for done in required:
        assert "plugin neox-absent is required and not installed" in done["stderr"]
        assert "neox-good" not in done["stderr"]


def test_a_name_that_two_plugins_offer_is_used_with_its_plugin(
    site: Any, install: Any, prepare: Any, using: Any
) -> None:
    prepare(site)
    install(site, "neox-a", "Lion")
    install(site, "neox-b", "Lion")
    for done in site.neox_each(*commands("run.yml")):
        assert done["exit_code"] == 0, "a clash that the config does not meet is no error"
    using(site, "Lion")
    for done in site.neox_each(*commands("run.yml")):
        assert done["exit_code"] == 3
        assert "'Lion' is offered by neox-a 1.0 and neox-b 1.0" in done["stderr"]
        assert "`neox-a:Lion` or `neox-b:Lion`" in done["stderr"]
    using(site, '"neox-b:Lion"')
    for done in site.neox_each(*commands("run.yml")):
        assert done["exit_code"] == 0, done["stderr"]
    shown = site.neox("config", "show", "run.yml")
    assert "Lion (neox-b 1.0)" in shown.stdout


def test_a_key_with_two_owners_is_an_error(site: Any, prepare: Any, using: Any) -> None:
    prepare(site)
    section = """
    from attrs import frozen
    from neox_core.api import ConfigSection, hookimpl, setting
    @frozen
    class Settings:
        speed: float = setting(0.5, help="How fast.")
    @hookimpl
    def neox_config_sections():
        return [ConfigSection("pace", Settings)]
    """
    for name in ("neox-a", "neox-b"):
        site.install(name, section)
    for done in site.neox_each(*commands("run.yml")):
        assert done["exit_code"] == 0, "no key that both have is written"
    using(site, "Fine", "speed: 2\n")
    for done in site.neox_each(*commands("run.yml")):
        assert done["exit_code"] == 3
        assert "speed: has two owners: neox-a (section pace) and neox-b (section pace)" in done["stderr"]


def test_a_plugin_that_is_switched_off_cannot_be_used(good: Any, prepare: Any, using: Any) -> None:
    prepare(good)
    using(good, "Good")
    env = {"NEOX_PLUGINS_DISABLE": "neox-good"}
    for done in good.neox_each(*commands("run.yml")):
        assert done["exit_code"] == 0, done["stderr"]
    for done in good.neox_each(*commands("run.yml"), env=env):
        assert done["exit_code"] == 3
        assert "neox-good 1.0 is disabled: switched off by NEOX_PLUGINS_DISABLE" in done["stderr"]
    using(good, "Fine", "xyzzy: 3\n")
    for done in good.neox_each(*commands("run.yml"), env=env):
        assert "xyzzy: unknown key; not loaded, and may own it: neox-good 1.0 is disabled" in done["stderr"]


def test_a_misspelt_switch_is_told_also_beside_errors(good: Any, prepare: Any, using: Any) -> None:
    prepare(good)
    using(good, "Absent")
    for done in good.neox_each(*commands("run.yml"), env={"NEOX_PLUGINS_DISABLE": "neox-god"}):
        assert done["exit_code"] == 3
        said = "warning: NEOX_PLUGINS_DISABLE switches off neox-god, which is not installed; did you mean 'neox-good'?"
        assert said in done["stderr"].splitlines()


def test_without_any_plugin_every_choice_is_told(site: Any, prepare: Any) -> None:
    prepare(site)
    for done in site.neox_each(*commands("run.yml"), env={"NEOX_PLUGINS_DISABLE": "neox-all,neox-parts"}):
        assert done["exit_code"] == 3
        for kind in ("optimizer", "norm", "position", "activation", "launcher", "monitor"):
            assert f"no {kind} " in done["stderr"]


def test_a_missing_architecture_is_one_error_and_not_one_for_each_of_its_keys(site: Any, prepare: Any) -> None:
    prepare(site)
    for done in site.neox_each(*commands("run.yml"), env={"NEOX_PLUGINS_DISABLE": "neox-gpt"}):
        assert done["exit_code"] == 3
        assert done["stderr"].startswith(
            "error: the configuration has 1 error:\nrun.yml: error: architecture: no architecture"
        )
        assert "hidden-size" not in done["stderr"]


def test_a_launcher_that_starts_nothing_or_what_is_no_command_is_named(site: Any, prepare: Any) -> None:
    prepare(site)
    (site.work / "odd").mkdir()
    (site.work / "odd" / ".run.lock").mkdir()
    runs = ["train", "run.yml"], ["train", "run.yml", "--set", "launcher=odd"], ["train", "run.yml", "--run-dir", "odd"]
    nothing, no_command, taken = site.neox_each(*runs)
    assert nothing["exit_code"] == no_command["exit_code"] == 3
    assert "launcher neox-all:local 1.0 ended with exit code 0, but no rank has finished" in nothing["stderr"]
    assert "launcher neox-all:odd 1.0: every word of argv is a string: " in no_command["stderr"]
    assert (taken["exit_code"], "odd/.run.lock: cannot be written: Is a directory" in taken["stderr"]) == (2, True)

"""What `config check` and `train --dry-run` make of plugins that fail, clash, or are switched off."""

from pathlib import Path
from typing import Any

EVERY_KIND = """
from attrs import frozen
from neox_core.api import Component, hookimpl, setting

@frozen
class Settings:
    lr: float = setting(0.1, help="Peak learning rate.")

def offers(*names):
    return [Component(name, "neox_all.parts:launch") for name in names]

@hookimpl
def neox_optimizers():
    return [Component("Fine", "neox_all.parts:launch", Settings)]

@hookimpl
def neox_lr_schedules():
    return offers("linear", "cosine")

@hookimpl
def neox_launchers():
    return [*offers("local"), Component("odd", "neox_all.parts:odd")]

@hookimpl
def neox_data_backends():
    return offers("mmap")

@hookimpl
def neox_monitors():
    return offers("console", "jsonl")
"""
PARTS = """
from neox_core.api import Component, hookimpl

@hookimpl
def neox_norms():
    return [Component("layernorm", "neox_all.parts:launch")]

@hookimpl
def neox_positions():
    return [Component("learned", "neox_all.parts:launch")]

@hookimpl
def neox_activations():
    return [Component("gelu", "neox_all.parts:launch")]
"""
LAUNCH = """
from neox_core.contracts import LaunchCommand

def launch(plan, run_file, settings):
    return LaunchCommand(("true",))

def odd(plan, run_file, settings):
    return LaunchCommand(("python", run_file))
"""
CONFIG = """\
num-layers: 2
hidden-size: 64
num-attention-heads: 4
max-position-embeddings: 32
seq-length: 32
data-path: tokens
data-impl: mmap
padded-vocab-size: 256
train-iters: 100
train_micro_batch_size_per_gpu: 4
optimizer: {type: Fine}
"""


def commands(*files: str) -> list[list[str]]:
    return [argv for file in files for argv in (["config", "check", file], ["train", "--dry-run", file])]


def prepare(site: Any) -> None:
    site.install("neox-all", EVERY_KIND, {"neox_all/parts.py": LAUNCH})
    site.install("neox-parts", PARTS)
    site.install_ours("neox-gpt", "plugin.py", "contracts.py", "ops.py", "config")
    site.install_ours("neox-deepspeed", "plugin.py", "config")
    site.install_ours("neox-causal-lm", "plugin.py")
    work: Path = site.work
    using(site, "Fine")
    (work / "tokens.bin").write_bytes(b"")
    (work / "tokens.idx").write_bytes(b"MMIDIDX\x00\x00")


def using(site: Any, optimizer: str, more: str = "", file: str = "run.yml") -> None:
    (site.work / file).write_text(CONFIG.replace("Fine", optimizer) + more)


def test_a_plugin_that_fails(failing: Any) -> None:
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


def test_a_name_that_two_plugins_offer_is_used_with_its_plugin(site: Any, install: Any) -> None:
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


def test_a_key_with_two_owners_is_an_error(site: Any) -> None:
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


def test_a_plugin_that_is_switched_off_cannot_be_used(good: Any) -> None:
    prepare(good)
    using(good, "Good")
    env = {"NEOX_PLUGINS_DISABLE": "neox-good"}
    for done in good.neox_each(*commands("run.yml")):
        assert done["exit_code"] == 0, done["stderr"]
    for done in good.neox_each(*commands("run.yml"), env=env):
        assert done["exit_code"] == 3
        assert "neox-good 1.0 is disabled: switched off by NEOX_PLUGINS_DISABLE" in done["stderr"]


def test_without_any_plugin_every_choice_is_told(site: Any) -> None:
    prepare(site)
    for done in site.neox_each(*commands("run.yml"), env={"NEOX_PLUGINS_DISABLE": "neox-all,neox-parts"}):
        assert done["exit_code"] == 3
        for kind in ("optimizer", "norm", "position", "activation", "launcher", "monitor"):
            assert f"no {kind} " in done["stderr"]


def test_a_missing_architecture_is_one_error_and_not_one_for_each_of_its_keys(site: Any) -> None:
    prepare(site)
    for done in site.neox_each(*commands("run.yml"), env={"NEOX_PLUGINS_DISABLE": "neox-gpt"}):
        assert done["exit_code"] == 3
        assert done["stderr"].startswith(
            "error: the configuration has 1 error:\nrun.yml: error: architecture: no architecture"
        )
        assert "hidden-size" not in done["stderr"]


def test_a_launcher_that_starts_nothing_or_what_is_no_command_is_named(site: Any) -> None:
    prepare(site)
    (site.work / "odd").mkdir()
    (site.work / "odd" / ".run.lock").mkdir()
    runs = ["train", "run.yml"], ["train", "run.yml", "--set", "launcher=odd"], ["train", "run.yml", "--run-dir", "odd"]
    nothing, no_command, taken = site.neox_each(*runs)
    assert nothing["exit_code"] == no_command["exit_code"] == 3
    assert "launcher neox-all:local 1.0 ended with exit code 0, but no rank has finished" in nothing["stderr"]
    assert "launcher neox-all:odd 1.0: every word of argv is a string: " in no_command["stderr"]
    assert (taken["exit_code"], "odd/.run.lock: cannot be written: Is a directory" in taken["stderr"]) == (2, True)

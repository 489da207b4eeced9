"""Keys that several plugins have: which of them reads one, and the blocks that keep them apart."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from neox_core.api import Component, ConfigSection, hookimpl, setting
from neox_core.config.dialects import modernise
from neox_core.config.read.load import load
from neox_core.config.report import in_order, render
from neox_core.config.schema.structure import Config, structure

ROOT = Path(__file__).parents[3]
Read = Callable[..., tuple[Config, list[str]]]


class Pace:
    """A plugin whose norm and position have a key of the core, of a section, of `everything`, and a key of both."""

    @frozen
    class NormSettings:
        seed: str = setting("n", help="A key of the core.")
        depth: str = setting("n", help="A key of sections.")
        scale: str = setting("n", help="A key of both.")

    @frozen
    class PositionSettings:
        rms_norm_epsilon: str = setting("p", help="A key of everything's rmsnorm.")
        scale: float = setting(0.5, help="A key of both.")

    @hookimpl
    def neox_norms(self) -> list[Component]:
        return [Component("pace-norm", "math:floor", self.NormSettings)]

    @hookimpl
    def neox_positions(self) -> list[Component]:
        return [Component("xpos", "math:floor", self.PositionSettings)]


class Depth:
    """A plugin whose section has one key."""

    @frozen
    class Settings:
        depth: int = setting(1, help="A key of others too.")

    @hookimpl
    def neox_config_sections(self) -> list[ConfigSection]:
        return [ConfigSection("depth", self.Settings)]


class Level:
    """A plugin whose section has a key of the section of `depth`, a key of the core, and one of its own."""

    @frozen
    class Settings:
        depth: str = setting("s", help="A key of another section.")
        seed: str = setting("s", help="A key of the core.")
        level: int = setting(1, help="Its own key.")

    @hookimpl
    def neox_config_sections(self) -> list[ConfigSection]:
        return [ConfigSection("level", self.Settings)]


@pytest.fixture
def read(tmp_path: Path, text: str, plugins: Any, everything: Any) -> Read:
    """Config and problems of the base config with lines added, where all these plugins are installed."""
    catalog = plugins(everything=everything, pace=Pace(), depth=Depth(), level=Level())

    def read(more: str = "") -> tuple[Config, list[str]]:
        file = tmp_path / "c.yml"
        file.write_text(text + more)
        config, problems = structure(modernise(load([file]), catalog.registry), catalog)
        return config, render(in_order(problems)).splitlines()

    return read


@pytest.mark.parametrize(
    ("more", "key", "value"),
    [
        ("", "seed", 1234),
        ("seed: 7\n", "seed", 7),
        ("norm: rmsnorm\nrms-norm-epsilon: 1e-6\n", "rms-norm-epsilon", 1e-6),
        ("norm: pace-norm\n", "seed", 1234),
        ("norm: pace-norm\nscale: fast\n", "scale", "fast"),
        ("pos-emb: xpos\nscale: 2\n", "scale", 2.0),
        ("pos-emb: xpos\n", "rms-norm-epsilon", "p"),
        ("norm: pace-norm\ndepth: text\n", "depth", "text"),
        ("level: 3\n", "level", 3),
        ("level: 3\ndepth: text\n", "depth", "text"),
    ],
)
def test_a_key_of_several_owners_is_read_by_the_one_that_acts(read: Read, more: str, key: str, value: Any) -> None:
    config, problems = read(more)
    assert problems == []
    assert config.value(key) == value


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("norm: pace-norm\nseed: 7\n", "seed: has two owners: neox-core (section training) and pace (norm pace-norm) "),
        ("level: 3\nseed: 7\n", "seed: has two owners: neox-core (section training) and level (section level) "),
        ("depth: 3\n", "depth: has two owners: depth (section depth) and level (section level) "),
        (
            "norm: pace-norm\npos-emb: xpos\nscale: 3\n",
            "pace (norm pace-norm) and pace (position xpos) (write pace_norm: {scale: ...} or xpos: {scale: ...})",
        ),
    ],
)
def test_two_owners_that_act_are_both_named(read: Read, more: str, said: str) -> None:
    _, problems = read(more)
    assert [said in each for each in problems] == [True], problems


def test_settings_of_a_component_in_a_block_of_its_name(read: Read) -> None:
    more = "norm: pace-norm\npos-emb: xpos\nseed: 7\npace-norm: {seed: a, scale: fast}\nxpos: {scale: 2}\n"
    config, problems = read(more)
    assert problems == []
    ((norm,), (position,)) = (config.components(kind) for kind in ("norm", "position"))
    assert (norm.settings.seed, norm.settings.scale, norm.settings.depth) == ("a", "fast", "n")
    assert (position.settings.scale, position.settings.rms_norm_epsilon) == (2.0, "p")
    assert [config.value(key) for key in ("seed", "pace-norm.seed", "xpos.scale")] == [7, "a", 2.0]
    assert config.is_set("xpos.scale")
    assert not config.is_set("xpos.rms-norm-epsilon")
    assert config.problem("no", "xpos.scale").where == config.origin("xpos.scale")


def test_keys_stand_beside_the_block(read: Read) -> None:
    config, problems = read("pos-emb: xpos\nscale: 3\nxpos: {rms-norm-epsilon: b}\n")
    assert problems == []
    (position,) = config.components("position")
    assert (position.settings.scale, position.settings.rms_norm_epsilon) == (3.0, "b")
    assert config.origin("xpos.scale") == config.origin("scale") != "default"
    assert config.problem("no", "rms-norm-epsilon").key == "xpos.rms-norm-epsilon"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("xpos: {scale: 2}\n", "xpos: belongs to position xpos, and this config has pos-emb: learned"),
        ("pos-emb: xpos\nxpos: {scle: 2}\n", "xpos.scle: unknown key (did you mean 'scale'?)"),
        ("pos-emb: xpos\nxpos: {scale: fast}\n", "xpos.scale: must be a number, not 'fast'"),
        ("pos-emb: xpos\nxpos: 3\n", "xpos: must be a block of the settings of pace (position xpos), not 3"),
        ("pos-emb: xpos\nscale: 3\nxpos: {scale: 2}\n", "scale: is written in xpos too (keep one of the two)"),
    ],
)
def test_what_is_wrong_with_a_block_of_a_component(read: Read, more: str, said: str) -> None:
    _, problems = read(more)
    assert [each.partition("error: ")[2].startswith(said) for each in problems] == [True], problems


def test_a_key_of_a_component_that_is_not_chosen_has_its_default(read: Read) -> None:
    config, _ = read()
    assert config.value("rms-norm-epsilon") == 1e-8
    assert config.seen_by("pace").value("rms-norm-epsilon") == "p"
    assert config.value("xpos.scale") == 0.5
    assert config.value("vocab-file") is None, "it has no default"
    assert config.value("scheduler.params.warmup-num-steps") == 1000
    for key in ("no-such-key", "scheduler.params.no-such-key", "optimizer.no-such-key"):
        with pytest.raises(KeyError):
            config.value(key)


def test_settings_are_imported_for_a_config_that_uses_their_plugin() -> None:
    """And not to list plugins. In a process of its own, since the tests of others have imported all."""
    probe = """
import sys
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run
from pathlib import Path

load_plugins()
print(*(each for each in sys.modules if each.startswith("neox_") and each.endswith(".settings")))
done = prepare_run([Path("configs/quickstart.yml")], start=False)
for each in done.catalog.registry.entries():
    module = str(each.component.given).partition(":")[0]
    if module in sys.modules and each.plugin.id not in done.config.in_use:
        print(each.qualified)
"""
    done = subprocess.run([sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []

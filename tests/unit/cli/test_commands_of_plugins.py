"""Commands that plugins add: alone, in groups, broken, absent."""

import re
from pathlib import Path
from typing import Any

from offered_commands import offer_commands

GROUPS = """
from neox_core.api import Component, hookimpl

@hookimpl
def neox_commands():
    return [Component(name, f"neox_a.commands:{target}", summary="Of a group.") for name, target in NAMES.items()]
"""
IN_GROUPS = """
import click

@click.group()
@click.option("--loud", is_flag=True)
@click.pass_context
def tools(ctx, loud):
    "Tools."
    ctx.obj = loud

@tools.command()
def own():
    click.echo("own")

@click.command()
@click.pass_obj
def added(loud):
    "Added by another."
    click.echo(f"added, loud: {loud}")

@click.command()
def broken():
    {}["key"]
"""


def test_plugins_add_commands(site: Any) -> None:
    site.install_ours("neox-author")
    offer_commands(site, "neox-a", "hello", "fail", "other", "absent")
    hello, fail, other, absent, near, help_text, lists = site.neox_each(
        ["hello", "--times", "2"], ["fail"], ["other"], ["absent"], ["helo"], ["--help"], ["plugins", "info", "hello"]
    )
    assert (hello["exit_code"], hello["stdout"]) == (0, "hello hello \n")
    assert (fail["exit_code"], fail["stderr"]) == (4, "error: no file\n")
    assert (other["exit_code"], "not a click command" in other["stderr"]) == (3, True)
    assert (absent["exit_code"], "has no attribute 'absent'" in absent["stderr"]) == (3, True)
    assert (near["exit_code"], "did you mean 'hello'?" in near["stderr"]) == (2, True)
    assert "It can hello. (neox-a)" in help_text["stdout"]
    assert "use       neox hello" in lists["stdout"]


def test_a_fault_in_a_command_of_a_plugin_names_it(site: Any) -> None:
    offer_commands(site, "neox-a", "broken")
    fault, usage, left, file, debug = site.neox_each(
        ["broken", "x"], ["broken", "usage"], ["broken", "leave"], ["broken", "file"], ["--debug", "broken", "x"]
    )
    assert fault["exit_code"] == debug["exit_code"] == 3
    said, hint = fault["stderr"].splitlines()
    assert said.startswith("error: KeyError: 'key' (in neox-a 1.0: neox_a.commands, line ")
    assert "tell the author of neox-a; `neox --debug`" in hint
    assert "Traceback" in debug["stderr"]
    assert (usage["exit_code"], "Error: not so" in usage["stderr"]) == (2, True)
    assert left["exit_code"] == 9
    assert (file["exit_code"], file["stderr"].startswith(f"error: {'a' * 300}: File name too long\n")) == (2, True)


def test_a_command_that_two_plugins_offer(site: Any) -> None:
    offer_commands(site, "neox-a", "hello")
    offer_commands(site, "neox-b", "hello")
    bare, qualified, help_text = site.neox_each(["hello"], ["neox-b:hello"], ["--help"])
    assert bare["exit_code"] == 3
    assert "write `neox-a:hello` or `neox-b:hello`" in bare["stderr"]
    assert qualified["stdout"] == "hello \n"
    assert "neox-a:hello" in help_text["stdout"]


def test_commands_in_the_group_of_another_plugin_and_in_one_of_nobody(site: Any) -> None:
    for plugin, names in {
        "neox-a": {"tools": "tools"},
        "neox-b": {"tools.added": "added", "tools.own": "added", "tools.broken": "broken", "alone.x": "added"},
    }.items():
        package = plugin.replace("-", "_")
        source = GROUPS.replace("neox_a", package).replace("NAMES", repr(names))
        site.install(plugin, source, {f"{package}/commands.py": IN_GROUPS})
    own, added, clash, broken, alone, none, tools, everything = site.neox_each(
        ["tools", "own"],
        ["tools", "--loud", "added"],
        ["tools", "neox-b:tools.own"],
        ["tools", "broken"],
        ["alone", "x"],
        ["alone", "y"],
        ["tools", "--help"],
        ["--help"],
    )
    assert own["stdout"] == "own\n"
    assert added["stdout"] == "added, loud: True\n"
    assert clash["stdout"] == "added, loud: False\n"
    assert (broken["exit_code"], "KeyError: 'key' (in neox-b 1.0: " in broken["stderr"]) == (3, True)
    assert alone["stdout"] == "added, loud: None\n"
    assert (none["exit_code"], "No such command 'y'" in none["stderr"]) == (2, True)
    assert "--loud" in tools["stdout"]
    assert "Added by another." in tools["stdout"]
    assert "A group of commands (neox-b)" in everything["stdout"]
    assert "tools.added" not in everything["stdout"]


def test_a_command_line_lists_each_plugin_once(site: Any) -> None:
    """Also below a group, and where the command asks for the plugins itself."""
    counted = GROUPS.replace("    return", "    print('listed')\n    return").replace(
        "NAMES", "{'tools': 'tools', 'tools.more': 'more'}"
    )
    asks = "@click.command()\ndef more():\n    from neox_core.cli.offered import loaded\n    loaded()\n"
    site.install("neox-a", counted, {"neox_a/commands.py": f"{IN_GROUPS}\n{asks}"})
    for said in site.neox_each(["tools", "own"], ["tools", "more"], ["tools", "--help"], ["plugins", "list"]):
        assert (said["exit_code"], said["stderr"].count("listed")) == (0, 1), said


def test_the_command_of_the_page(site: Any, tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/plugins/command.md").read_text("utf-8")
    code = dict(re.findall(r"`(neox_words/\w+\.py)`[^`]*:\n\n```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    site.install("neox-words", code.pop("neox_words/plugin.py"), code)
    (tmp_path / "text").write_text("one two\nthree\n")
    (tmp_path / "zeros").write_bytes(bytes(9))
    text, zeros = site.neox_each(["data", "words", str(tmp_path / "text")], ["data", "words", str(tmp_path / "zeros")])
    assert text["stdout"] == "3 words\n"
    assert (zeros["exit_code"], "zeros is not a text\n  give a file in UTF-8" in zeros["stderr"]) == (4, True)


def test_a_command_with_the_name_of_one_of_ours(site: Any) -> None:
    site.install_ours("neox-author")
    offer_commands(site, "neox-a", "plugins", "hello")
    ours, help_text, check = site.neox_each(["plugins", "list"], ["--help"], ["plugins", "check"])
    assert "neox-a" in ours["stdout"]
    assert "neox-a:plugins" in help_text["stdout"]
    assert check["exit_code"] == 3
    assert "has the name of a command of neox itself" in check["stdout"]


def test_a_command_below_what_is_not_a_group(site: Any) -> None:
    site.install_ours("neox-author")
    offer_commands(site, "neox-a", "train.words", "words.train", "config.words", "hello")
    (check,) = site.neox_each(["plugins", "check"])
    assert check["exit_code"] == 3
    fault = "command neox-a:train.words: `neox train` is a command, not a group, so it has no 'words'"
    assert fault in check["stdout"]
    assert check["stdout"].count("not a group") == 1


def test_a_command_of_a_first_party_plugin_that_is_not_installed_names_it(site: Any) -> None:
    listed, check, data = site.neox_each(["plugins", "list"], ["plugins", "check"], ["data"])
    assert (listed["exit_code"], listed["stdout"]) == (0, "")
    assert "no plugins" in listed["stderr"]
    assert "in the repository of neox" in listed["stderr"]
    assert check["exit_code"] == data["exit_code"] == 2
    said = "no command 'check'; neox-author offers it: `pip install ./plugins/neox-author` in the repository of neox"
    assert said in check["stderr"]
    assert "no command 'data'; neox-data offers it: " in data["stderr"]


def test_an_unknown_command_tells_which_plugin_may_have_it(failing: Any) -> None:
    done = failing.site.neox("hello")
    assert done.returncode == 2
    assert f"plugin neox-bad 1.0 is {failing.status}" in done.stderr
    assert failing.cause in done.stderr
    assert failing.site.neox("--help").returncode == 0

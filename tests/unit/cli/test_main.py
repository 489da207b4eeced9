"""The front door: exit codes, lazy subcommands, commands of plugins."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from neox_core import errors
from neox_core.cli.main import SUBCOMMANDS, neox
from neox_core.hooks.component import load_path


@pytest.fixture(autouse=True)
def _debug_is_not_left_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEOX_DEBUG", "0")


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """run(error, *argv): what `neox` makes of a subcommand that raises `error`."""

    def run(error: BaseException, *argv: str) -> Result:
        @click.command("train")
        def train() -> None:
            raise error

        monkeypatch.setattr("neox_core.cli.main.load_path", lambda path: train)
        return CliRunner().invoke(neox, [*argv, "train"])

    return run


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError, 2),
        (errors.ConfigError, 2),
        (errors.PluginError, 3),
        (errors.DataError, 4),
        (errors.CheckpointError, 5),
        (errors.RankError, 6),
    ],
)
def test_a_users_mistake_is_a_message_and_an_exit_code(raising: Any, error: type, code: int) -> None:
    result = raising(error("it is wrong", hint="mend it"))
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr == "error: it is wrong\n  mend it\n"


def test_the_version_is_the_packages() -> None:
    result = CliRunner().invoke(neox, ["--version"])
    assert (result.exit_code, result.output) == (0, f"neox, version {version('neox-core')}\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_a_script_that_completes_commands_of_plugins_too(shell: str) -> None:
    script = CliRunner().invoke(neox, prog_name="neox", env={"_NEOX_COMPLETE": f"{shell}_source"})
    assert script.exit_code == 0
    assert "_neox_completion" in script.output
    asked = {"COMP_WORDS": "neox t", "COMP_CWORD": "t" if shell == "fish" else "1"}
    found = CliRunner().invoke(neox, prog_name="neox", env={**asked, "_NEOX_COMPLETE": f"{shell}_complete"})
    assert {"train", "tune"} <= set(re.split(r"[,\s]", found.output))


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_takes_the_script(tmp_path: Path) -> None:
    script = CliRunner().invoke(neox, prog_name="neox", env={"_NEOX_COMPLETE": "bash_source"}).output
    done = subprocess.run(["bash", "-c", f"{script}\ncomplete -p neox"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "_neox_completion" in done.stdout


def test_memory_that_runs_out_and_a_library_that_does_not_fit_in_it_are_said(raising: Any) -> None:
    for error in (MemoryError(), ImportError("libtorch_cpu.so: failed to map segment from shared object")):
        result = raising(error)
        assert result.exit_code == 2
        assert result.stderr.startswith("error: memory ran out")
        assert "ulimit -v" in result.stderr
    assert isinstance(raising(ImportError("no module named x")).exception, ImportError)


def test_an_argument_that_is_no_text_is_said_by_every_command() -> None:
    for argv in (["train", "a\udcff.yml"], ["generate", "--prompt", "\udcff"], ["\udcff"]):
        result = CliRunner().invoke(neox, argv)
        assert result.exit_code == 2
        assert result.stderr.startswith(f"error: argument {len(argv)} is not UTF-8: ")
        assert "\\udcff" in result.stderr


@pytest.mark.parametrize(
    "argv",
    [
        ["config", "check", "x" * 70_000],
        ["config", "explain", "x" * 70_000],
        ["config", "check", "FILE", "--set", "norm=" + "x" * 70_000],
        ["config", "check", "FILE", "--set", "x" * 70_000 + "=1"],
        ["config", "check", "FILE", "--set", "hostfile=" + "x" * 70_000],
        ["config", "show", "FILE", "--on", "x" * 70_000],
        ["plugins", "info", "x" * 70_000],
        ["plugins", "list", "--kind", "x" * 70_000],
        ["x" * 70_000],
    ],
)
def test_what_is_long_is_cut_in_what_is_said_of_it(tmp_path: Path, argv: list[str]) -> None:
    (tmp_path / "c.yml").write_text("seed: 1\n")
    result = CliRunner().invoke(neox, [str(tmp_path / "c.yml") if each == "FILE" else each for each in argv])
    assert result.exit_code in (2, 3)
    assert len(result.output) < 10_000
    assert "more characters" in result.output or "xxx..." in result.output


def test_debug_shows_the_traceback_and_keeps_the_exit_code(raising: Any) -> None:
    result = raising(errors.DataError("it is wrong"), "--debug")
    assert result.exit_code == 4
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("error: it is wrong\n")
    assert os.environ["NEOX_DEBUG"] == "1"


def test_a_bug_is_not_dressed_up_as_a_mistake(raising: Any) -> None:
    assert isinstance(raising(ZeroDivisionError()).exception, ZeroDivisionError)


def test_interrupted_is_130(raising: Any) -> None:
    assert raising(KeyboardInterrupt()).exit_code == 130
    assert raising(click.exceptions.Exit(7)).exit_code == 7


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["trian"], "did you mean 'train'?"),
        (["xyzzy"], "`neox --help` lists all commands"),
        (["--no-such-option"], "No such option"),
        (["plugins", "list", "--kind"], "requires an argument"),
    ],
)
def test_a_wrong_command_line_is_2(argv: list[str], said: str) -> None:
    result = CliRunner().invoke(neox, argv)
    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_the_short_help_of_a_subcommand_is_its_own(name: str) -> None:
    command = load_path(SUBCOMMANDS[name].target)
    assert isinstance(command, click.Command)
    assert command.name == name


def test_help_imports_no_subcommand(site: Any) -> None:
    code = (
        "import sys\nfrom neox_core.cli.main import neox\n"
        "try:\n    neox.main(['--help'])\nfinally:\n    print([m for m in sys.modules if m.startswith('neox_core')])"
    )
    done = site.python("-c", code)
    for name, command in SUBCOMMANDS.items():
        assert f"  {name} " in done.stdout
        assert command.help in " ".join(done.stdout.split())
    modules = done.stdout.splitlines()[-1]
    assert "'neox_core.cli.main'" in modules
    assert "'neox_core.config" not in modules
    assert modules.count("'neox_core.cli.") == 2, "main, and what finds the commands of plugins"


COMMAND = """
import click
from neox_core.errors import DataError

@click.command()
@click.option("--times", default=1)
def hello(times):
    "Say hello."
    click.echo("hello " * times)
    return 7

@click.command()
def fail():
    raise DataError("no file")

@click.command()
@click.argument("how")
def broken(how):
    if how == "usage":
        raise click.UsageError("not so")
    if how == "leave":
        click.get_current_context().exit(9)
    {}["key"]

other = 3
"""
OFFERS = """
from neox_core.api import Component, hookimpl

@hookimpl
def neox_commands():
    return [Component(name, f"PACKAGE.commands:{name}", summary=f"It can {name}.") for name in NAMES]
"""


def offer_commands(site: Any, plugin: str, *names: str) -> None:
    package = plugin.replace("-", "_")
    source = OFFERS.replace("PACKAGE", package).replace("NAMES", repr(names))
    site.install(plugin, source, {f"{package}/commands.py": COMMAND})


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
    fault, usage, left, debug = site.neox_each(
        ["broken", "x"], ["broken", "usage"], ["broken", "leave"], ["--debug", "broken", "x"]
    )
    assert fault["exit_code"] == debug["exit_code"] == 3
    said, hint = fault["stderr"].splitlines()
    assert said.startswith("error: command neox-a:broken 1.0 failed: KeyError: 'key' (neox_a.commands, line ")
    assert "tell the author of neox-a; `neox --debug`" in hint
    assert "Traceback" in debug["stderr"]
    assert (usage["exit_code"], "Error: not so" in usage["stderr"]) == (2, True)
    assert left["exit_code"] == 9


def test_a_command_that_two_plugins_offer(site: Any) -> None:
    offer_commands(site, "neox-a", "hello")
    offer_commands(site, "neox-b", "hello")
    bare, qualified, help_text = site.neox_each(["hello"], ["neox-b:hello"], ["--help"])
    assert bare["exit_code"] == 3
    assert "write `neox-a:hello` or `neox-b:hello`" in bare["stderr"]
    assert qualified["stdout"] == "hello \n"
    assert "neox-a:hello" in help_text["stdout"]


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
    assert (broken["exit_code"], "command neox-b:tools.broken 1.0 failed: KeyError" in broken["stderr"]) == (3, True)
    assert alone["stdout"] == "added, loud: None\n"
    assert (none["exit_code"], "No such command 'y'" in none["stderr"]) == (2, True)
    assert "--loud" in tools["stdout"]
    assert "Added by another." in tools["stdout"]
    assert "A group of commands (neox-b)" in everything["stdout"]
    assert "tools.added" not in everything["stdout"]


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


def test_a_module_takes_the_place_of_the_command(site: Any) -> None:
    site.install(
        "neox-a",
        "",
        {"heavy_main.py": "import os, sys\nprint(os.getpid(), sys.argv[1], os.environ['NEOX_DEBUG'])\nsys.exit(5)"},
    )
    code = (
        "import os\nfrom neox_core.cli.process import exec_module\n"
        "print(os.getpid(), end=' ')\nexec_module('heavy_main', {'text': '$HOME \\'é\"'})"
    )
    done = site.python("-c", code, env={"NEOX_DEBUG": "1"})
    first, second, rest = done.stdout.split(" ", 2)
    arguments, debug = rest.rsplit(" ", 1)
    assert first == second
    assert json.loads(arguments) == {"text": "$HOME 'é\""}
    assert (debug, done.returncode) == ("1\n", 5)


def test_a_fault_in_the_module_of_a_command_names_its_plugin(site: Any) -> None:
    commands = """
    import click
    from neox_core.cli.process import exec_module

    @click.command()
    @click.argument("module")
    def run(module):
        exec_module(module, {})
    """
    modules = {"deep": "{}['key']", "heavy": "import neox_a.deep", "files": "open('/no/such.file')"}
    files = {f"neox_a/{name}.py": text for name, text in modules.items()}
    site.install(
        "neox-a",
        OFFERS.replace("PACKAGE", "neox_a").replace("NAMES", "['run']"),
        {"neox_a/commands.py": commands, **files},
    )
    heavy, absent, debug = (
        site.neox(*argv, "run", module)
        for *argv, module in (["neox_a.heavy"], ["neox_a.absent"], ["--debug", "neox_a.heavy"])
    )
    assert heavy.returncode == absent.returncode == debug.returncode == 3
    assert heavy.stderr.splitlines()[0] == "error: KeyError: 'key' (in neox-a 1.0: neox_a.deep, line 1)"
    assert "tell the author of neox-a; `neox --debug`" in heavy.stderr
    assert "No module named neox_a.absent (in neox-a 1.0: neox_a.absent)" in absent.stderr
    assert ("Traceback" in heavy.stderr + absent.stderr, "Traceback" in debug.stderr) == (False, True)


def test_what_the_system_says_of_a_file_is_no_traceback(raising: Any) -> None:
    result = raising(IsADirectoryError(21, "Is a directory", "/run/stop"))
    assert (result.exit_code, result.stderr.splitlines()[0]) == (2, "error: /run/stop: Is a directory")
    result = raising(OSError(18, "Invalid cross-device link", "/a", None, "/b"))
    assert "/a and /b: Invalid cross-device link" in result.stderr
    assert isinstance(raising(OSError(9, "Bad file descriptor")).exception, OSError)


def test_ctrl_c_in_a_real_process(site: Any, tmp_path: Path) -> None:
    commands = f"""
    import click, pathlib, time

    @click.command()
    def wait():
        pathlib.Path({str(tmp_path / "ready")!r}).touch()
        time.sleep(60)
    """
    source = OFFERS.replace("PACKAGE", "neox_a").replace("NAMES", "['wait']")
    site.install("neox-a", source, {"neox_a/commands.py": commands})
    paths = os.pathsep.join(map(str, (site.folder, site.libraries)))
    command = [sys.executable, "-S", "-m", "neox_core", "wait"]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in stderr


def test_a_reader_that_leaves_is_no_error(site: Any) -> None:
    for number in range(3):
        offer_commands(site, f"neox-{number}", *(f"hello{i}" for i in range(2000)))
    paths = os.pathsep.join(map(str, (site.folder, site.libraries)))
    command = [sys.executable, "-S", "-m", "neox_core", "plugins", "list"]
    env = {**os.environ, "PYTHONPATH": paths}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(30) == 141

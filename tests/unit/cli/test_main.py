"""The front door: exit codes, lazy subcommands, the command line."""

import os
import re
import shutil
import subprocess
import sys
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
    command = load_path(SUBCOMMANDS[name][0])
    assert isinstance(command, click.Command)
    assert command.name == name


def test_help_imports_no_subcommand(site: Any) -> None:
    code = (
        "import sys\nfrom neox_core.cli.main import neox\n"
        "try:\n    neox.main(['--help'])\nfinally:\n    print([m for m in sys.modules if m.startswith('neox_core')])"
    )
    done = site.python("-c", code)
    for name, (_, told) in SUBCOMMANDS.items():
        assert f"  {name} " in done.stdout
        assert told in " ".join(done.stdout.split())
    modules = done.stdout.splitlines()[-1]
    assert "'neox_core.cli.main'" in modules
    assert "'neox_core.config" not in modules
    assert modules.count("'neox_core.cli.") == 2, "main, and what finds the commands of plugins"


def test_what_the_system_says_of_a_file_is_no_traceback(raising: Any) -> None:
    result = raising(IsADirectoryError(21, "Is a directory", "/run/stop"))
    assert (result.exit_code, result.stderr.splitlines()[0]) == (2, "error: /run/stop: Is a directory")
    result = raising(OSError(18, "Invalid cross-device link", "/a", None, "/b"))
    assert "/a and /b: Invalid cross-device link" in result.stderr
    assert isinstance(raising(OSError(9, "Bad file descriptor")).exception, OSError)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems ignore the limit")
def test_memory_too_small_for_the_imports_is_one_error() -> None:
    """From what Python itself needs to what a command's own errors need.

    Python 3.11 can loop for ever where it has no memory left to note at which instruction an exception was raised.
    """
    ran_out, started = 0, [sys.executable, "-m", "neox_core", "--version"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(started, env=env, capture_output=True, check=True)  # compiles it, which takes more memory
    for megabytes in range(10, 60):
        limited = ["bash", "-c", f'ulimit -v {megabytes << 10}; exec "$@"', "-", sys.executable]
        try:
            imported = subprocess.run(
                [*limited, "-c", "import neox_core"], capture_output=True, timeout=20, check=False
            )
            if imported.returncode:
                continue
            command = [*limited, "-m", "neox_core", "config", "check", "none.yml"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        except subprocess.TimeoutExpired:
            continue
        assert done.stderr.startswith("error: "), (megabytes, done.stderr)
        if "none.yml" in done.stderr:
            break
        ran_out += "raise the limit (`ulimit -v`" in done.stderr
    assert ran_out >= 3


@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)])
def test_streams_that_are_closed_are_no_error(tmp_path: Path, closed: tuple[int, ...]) -> None:
    """As some services start a process; a file that it opens must not get their numbers."""
    closing = " ".join(f"{number}>&-" for number in closed)
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -m neox_core plugins list {closing}', sys.executable],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert bool(done.stdout) == (1 not in closed)

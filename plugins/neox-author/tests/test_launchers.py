"""`check_launcher` catches each fault that it is there for."""

import textwrap

import pluggy
import pytest
from neox_author.testing import check_launcher

from neox_core.hooks.catalog import Catalog
from neox_core.hooks.component import Component
from neox_core.hooks.registry import Entry, PluginInfo, Registry

LAUNCHERS = textwrap.dedent(
    """
    import os
    import subprocess
    from neox_core.contracts.host import LaunchCommand

    def good(plan, run_file, settings):
        return LaunchCommand(("python", "-m", "somewhere", str(run_file)), {"THREADS": "2"})

    def a_list(plan, run_file, settings):
        return ["python", str(run_file)]

    def a_path(plan, run_file, settings):
        return LaunchCommand(("python", run_file))

    def shell(plan, run_file, settings):
        return LaunchCommand(("/bin/bash", "-lc", f"python {run_file}"))

    def forgets_the_run(plan, run_file, settings):
        return LaunchCommand(("python", "-m", "somewhere"))

    def number(plan, run_file, settings):
        return LaunchCommand(("python", str(run_file)), {"THREADS": 2})

    def changes(plan, run_file, settings, calls=[]):
        calls.append(1)
        return LaunchCommand(("python", str(run_file)), {"ID": str(len(calls))})

    def leaks(plan, run_file, settings):
        return LaunchCommand(("python", str(run_file)), dict(os.environ))

    def writes(plan, run_file, settings):
        (run_file.parent / "hostfile").write_text("localhost slots=2")
        return LaunchCommand(("python", str(run_file)))

    def started(plan, run_file, settings):
        return None

    def asks(plan, run_file, settings):
        subprocess.run(["true"], check=True)
        return LaunchCommand(("python", str(run_file)))

    def exports(plan, run_file, settings):
        os.environ["OF_A_LAUNCHER"] = "2"
        return LaunchCommand(("python", str(run_file)))

    def makes_a_folder(plan, run_file, settings):
        (run_file.parent / "logs").mkdir(exist_ok=True)
        return LaunchCommand(("python", str(run_file)))

    def asks_a_shell(plan, run_file, settings):
        os.system("true")
        return LaunchCommand(("python", str(run_file)))

    def moves(plan, run_file, settings):
        os.chdir(run_file.parent)
        return LaunchCommand(("python", str(run_file)))

    def one_line(plan, run_file, settings):
        return LaunchCommand((f"python -m somewhere {run_file}",))

    def script(plan, run_file, settings):
        return LaunchCommand(("env", "A=1", "bash", "start.sh", str(run_file)))

    def tells(plan, run_file, settings):
        return LaunchCommand(("python", str(run_file)), notes=(f"with {os.environ['NEOX_API_KEY']}",))

    def one_note(plan, run_file, settings):
        return LaunchCommand(("python", str(run_file)), notes="with two ranks")
    """
)


@pytest.fixture
def catalog(tmp_path, monkeypatch):
    (tmp_path / "some_launchers.py").write_text(LAUNCHERS)
    (tmp_path / "heavy_launcher.py").write_text("import numpy\n" + LAUNCHERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("OF_A_LAUNCHER", "1")
    monkeypatch.chdir(tmp_path)
    registry, plugin = Registry(), PluginInfo("some-launchers", "1", "some")
    for name in (
        "good",
        "a_list",
        "a_path",
        "shell",
        "forgets_the_run",
        "number",
        "changes",
        "leaks",
        "writes",
        "started",
        "asks",
        "exports",
        "makes_a_folder",
        "asks_a_shell",
        "moves",
        "one_line",
        "script",
        "tells",
        "one_note",
    ):
        registry.add(Entry("launcher", Component(name, f"some_launchers:{name}"), plugin))
    registry.add(Entry("launcher", Component("heavy", "heavy_launcher:good"), plugin))
    return Catalog(pluggy.PluginManager("neox"), registry, ())


def test_a_good_launcher_passes(catalog):
    assert check_launcher(catalog, "good").env == {"THREADS": "2"}


@pytest.mark.parametrize(
    ("name", "clause"),
    [
        ("a_list", "returns a LaunchCommand"),
        ("started", "returns a LaunchCommand"),
        ("a_path", "every word of argv is a string"),
        ("shell", "no shell"),
        ("forgets_the_run", "told of the run file"),
        ("number", "env holds strings"),
        ("changes", "the same command, twice"),
        ("leaks", "no secret"),
        ("writes", "writes nothing"),
        ("asks", "starts nothing: it only says what to run; it starts .*true"),
        ("exports", "leaves os.environ, the current folder and the plan as they are"),
        ("moves", "leaves os.environ, the current folder and the plan as they are"),
        ("asks_a_shell", "starts nothing: it only says what to run; it starts true"),
        ("one_line", "argv is a tuple of words, and the first is the program"),
        ("script", "no shell"),
        ("makes_a_folder", "writes nothing"),
        ("tells", "no secret of the environment in argv, env or notes"),
        ("one_note", "notes is a tuple of lines"),
        ("heavy", "must be light; it imports numpy"),
    ],
)
def test_a_fault_is_caught(catalog, name, clause):
    with pytest.raises(AssertionError, match=clause):
        check_launcher(catalog, name)

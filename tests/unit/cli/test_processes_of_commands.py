"""The process of a command: the module that takes its place, its faults, signals, a reader that leaves."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from offered_commands import OFFERS, offer_commands


def test_a_module_takes_the_place_of_the_command(site: Any) -> None:
    site.install(
        "neox-a",
        "",
        {"heavy_main.py": "import os, sys\nprint(os.getpid(), sys.argv[1], os.environ['NEOX_DEBUG'])\nsys.exit(5)"},
    )
    code = (  # the text is longer than a word of a command line may be
        "import os\nfrom neox_core.cli.process import exec_module\n"
        "print(os.getpid(), end=' ')\nexec_module('heavy_main', {'text': '$HOME \\'é\"' * 40_000})"
    )
    done = site.python("-c", code, env={"NEOX_DEBUG": "1"})
    first, second, rest = done.stdout.split(" ", 2)
    arguments, debug = rest.rsplit(" ", 1)
    assert first == second
    assert json.loads(arguments) == {"text": "$HOME 'é\"" * 40_000}
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


def test_ctrl_c_during_imports_shows_no_traceback(site: Any) -> None:
    """Of the command itself, and of the process that imports torch in its place."""
    site.install("neox-a", "", {"interrupted.py": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)"})
    stop = (
        "import sys\nfrom neox_core.__main__ import main\n"
        "class Stop:\n    def find_spec(self, name, *rest):\n"
        "        if name == 'neox_core.cli.main':\n            import interrupted\n"
        "sys.meta_path.insert(0, Stop())\nmain()"
    )
    own = site.python("-c", stop)
    heavy = site.python("-c", "from neox_core.cli.process import exec_module\nexec_module('interrupted', {})")
    assert (own.returncode, own.stderr) == (heavy.returncode, heavy.stderr) == (130, "")


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

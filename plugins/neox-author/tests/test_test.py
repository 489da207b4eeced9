"""`neox plugins test`: each clause of each component, and what ends or hangs the process is named."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from neox_core.cli.main import neox

PYPROJECT = """
[project]
name = "neox-tried"
version = "1.0"
keywords = ["neox-api-1"]

[project.entry-points."neox.plugins"]
tried = "tried.plugin"
"""
LISTING = """
from attrs import frozen
from neox_core.api import Component, hookimpl, setting

@frozen
class Needs:
    tried_file: str = setting(help="A file.")

@frozen
class Wrong:
    tried_size: int = setting(1.5, help="A size.")

@hookimpl
def neox_monitors():
    names = "Sound", "Changes", "Silent", "Hangs", "Ends", "Rude", "Lies"
    return [
        *[Component(name, f"tried.monitors:{name}") for name in names],
        Component("Needs", "tried.monitors:Sound", Needs),
        Component("Wrong", "tried.monitors:Sound", Wrong),
        Component("Missing", "tried.monitors:Nowhere"),
        Component("Modules", "tried.monitors:Sound", needs=("not_a_module",)),
    ]

@hookimpl
def neox_commands():
    return [Component("tried", "tried.monitors:Sound")]
"""
MONITORS = r"""
import os, sys, time

class Sound:
    def __init__(self, run, settings): ...
    def log(self, step, values): ...
    def say(self, message): ...
    def close(self): ...

class Changes(Sound):
    def log(self, step, values): values.clear()

class Silent(Sound):
    say = None

class Hangs(Sound):
    def close(self): time.sleep(1e6)

class Ends(Sound):
    def close(self):
        if os.fork():
            os._exit(0)
        time.sleep(1e6)

class Rude(Sound):
    def close(self):
        print("\x1b]0;owned\x07" * 100000)
        raise ValueError("\x1b[2Jboo")

class Lies(Sound):
    def close(self):
        for number in range(3, 20):
            try:
                os.write(number, b'["done", ""]\n[1, "done", ""]\n[[[\nnot json\n')
            except OSError:
                pass
        os.kill(os.getpid(), 9)
"""


@pytest.fixture
def tried(tmp_path: Path) -> Path:
    (tmp_path / "tried").mkdir()
    for path, text in {
        "pyproject.toml": PYPROJECT,
        "tried/__init__.py": "",
        "tried/plugin.py": LISTING,
        "tried/monitors.py": MONITORS,
    }.items():
        (tmp_path / path).write_text(text)
    return tmp_path


def run(*argv: str) -> tuple[int, str]:
    done = CliRunner().invoke(neox, ["plugins", "test", *argv])
    return done.exit_code, done.output


def test_each_component_is_named_with_its_clauses(tried: Path) -> None:
    code, said = run(str(tried), "--limit", "4")
    assert code == 3
    assert "\x1b" not in said
    assert len(said) < 20_000
    found = dict(re.findall(r"^(\w+ [\w-]+)\n((?:  .*\n)+)", said, re.MULTILINE))
    assert re.search("ok +listing it imports no heavy library", found["plugin neox-tried"])
    sound = found["monitor Sound"].splitlines()
    assert len(sound) > 6
    assert all(line.startswith("  ok ") for line in sound)
    for name, clause in {
        "monitor Changes": "log.. leaves the values as they are",
        "monitor Silent": "it has no say",
        "monitor Hangs": r"takes longer than 4 s to test: File .*monitors.py.*, line \d+ in close",
        "monitor Ends": r"ends the process that tests it \(exit code 0\)",
        "monitor Lies": r"ends the process that tests it \(signal 9\)",
        "monitor Rude": r"it can be closed; it raises ValueError\('\\x1b\[2Jboo'\)",
        "monitor Wrong": "a config can write every setting of it; .*tried_size: its default",
        "monitor Missing": "Nowhere",
        "command tried": "a command is a click.Command; it is a type",
    }.items():
        assert re.search(f"^  failed +.*{clause}", found[name], re.MULTILINE), found[name]
        assert "was not tried" in found[name]
    assert "not applicable  the contract of the kind monitor: its settings have no default: tried_file" in said
    assert "not applicable  it can be imported: it needs not_a_module, not installed" in said
    assert re.search(r"^\d+ ok, \d+ failed, 2 not applicable$", said, re.MULTILINE)


@pytest.mark.parametrize(
    ("listing", "said"),
    [
        ("import torch", "neox-tried imports torch"),
        ("import os; os._exit(5)", "ends the process by os._exit while it is being listed"),
        ("raise SystemExit('\x1b[2J')", r"calls sys.exit\('\\x1b\[2J'\)"),
    ],
)
def test_a_listing_that_fails_is_named(tried: Path, listing: str, said: str) -> None:
    (tried / "tried/plugin.py").write_text(listing)
    code, text = run(str(tried))
    assert code == 3
    assert re.search(f"plugin neox-tried\n  failed +.*{said}", text), text


@pytest.mark.parametrize(
    ("text", "said", "code"),
    [
        (None, "has no pyproject.toml", 2),
        ("[project", "cannot be read", 3),
        (f"project = {'[' * 5000}{']' * 5000}", "cannot be read", 3),
        ("[project]\nname = 'x'", "no table 'entry-points', so this is not the folder of a plugin", 3),
        ("[project]\nname = 'x'\n[project.entry-points]\na.b = 'c'", "no table 'neox.plugins'", 3),
        (PYPROJECT.replace("neox-tried", "../x"), "has no name of a distribution: '../x'", 3),
        (PYPROJECT.replace('"1.0"', '"1\\nKeywords: neox-api-1"'), "'Version' has to be one line of text", 3),
        (PYPROJECT.replace('["neox-api-1"]', "1"), "keywords is not a list", 3),
    ],
)
def test_a_folder_that_is_not_a_plugin(tmp_path: Path, text: str | None, said: str, code: int) -> None:
    if text is not None:
        (tmp_path / "pyproject.toml").write_text(text)
    found, output = run(str(tmp_path))
    assert found == code
    assert said in output


def test_a_name_that_is_not_installed() -> None:
    code, said = run("neox-nowhere")
    assert code == 3
    assert "plugin neox-nowhere is required and not installed" in said

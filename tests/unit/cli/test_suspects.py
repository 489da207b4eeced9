"""A plugin that ends or hangs the process that lists it is known to the next command, and named by it."""

import fcntl
import os
import time
from pathlib import Path
from typing import Any

import pytest
from neox_author import suspects
from neox_author.suspects import watch

from neox_core.hooks.installed import Plugin

DIES = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
HANGS = "import signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM}); time.sleep(1e6)"


@pytest.fixture
def good(good: Any) -> Any:
    """With the plugin that watches over the listing."""
    good.install_ours("neox-author")
    return good


def listed(site: Any, **env: str) -> dict[str, str]:
    """What is listed of the other plugins."""
    done = site.neox("plugins", "list", env=env)
    assert done.returncode == 0, done.stderr
    rows = (line.split("\t") for line in done.stdout.splitlines())
    return {row[2]: f"{row[4]}: {row[5]}" for row in rows if row[2] != "neox-author"}


def plugin(name: str) -> Plugin:
    return Plugin(name, "1.0", None)


def notes(site: Any) -> list[str]:
    return sorted(file.name.partition("-")[0] for file in site.cache.rglob("*-*"))


def test_one_that_dies_is_named_from_then_on_until_it_is_mended(good: Any, install: Any) -> None:
    install(good, "neox-bad", "Bad", f"open('tried', 'a').write('.'); {DIES}")
    tried = good.work / "tried"
    first = good.neox("plugins", "list")
    assert first.returncode == -9
    assert first.stderr.startswith("error: this command was ended while it listed plugin neox-bad\n")
    assert "NEOX_PLUGINS_DISABLE=neox-bad switches it off" in first.stderr
    assert first.stderr.count("\n") == 2
    assert notes(good) == ["process"]
    said = {"neox-good": "ok: made for a test", "neox-bad": "broken: ends the process that lists it"}
    assert said.items() <= listed(good).items()
    assert said.items() <= listed(good).items()
    assert tried.read_text() == "..", "once by the first command, once to make sure"
    check = good.neox("plugins", "check")
    assert check.returncode == 3
    assert "fault: plugin neox-bad 1.0 is broken: ends the process that lists it" in check.stdout
    assert "NEOX_PLUGINS_DISABLE=neox-bad" in check.stdout
    assert tried.read_text() == "...", "which tries again"
    install(good, "neox-bad", "Mended")
    assert listed(good)["neox-bad"] == "ok: made for a test"
    assert notes(good) == []


def test_a_plugin_of_one_module_is_tried_again_when_it_is_mended(good: Any) -> None:
    good.install("neox-bad", "", entry_points={"bad": "bad_module"})
    module = good.folder / "bad_module.py"
    module.write_text(DIES)
    assert good.neox("plugins", "list").returncode == -9
    assert listed(good)["neox-bad"] == "broken: ends the process that lists it"
    module.write_text("from neox_core.api import hookimpl\n\n@hookimpl\ndef neox_optimizers():\n    return []\n")
    assert "neox-bad" not in listed(good), "which offers nothing, and is not broken"


@pytest.mark.parametrize("fault", ["import os; os.abort()", "import ctypes; ctypes.string_at(0)"])
def test_a_crash_in_c_is_one_error_that_names_the_plugin(good: Any, install: Any, fault: str) -> None:
    install(good, "neox-bad", "Bad", fault)
    done = good.neox("config", "check", "none.yml")
    assert done.returncode < 0
    assert done.stderr.splitlines()[0] == "error: this command was ended while it listed plugin neox-bad"


def test_a_command_leaves_no_process_of_its_own(folder: Path) -> None:
    with watch() as one:
        one.begin(plugin("neox-a"))
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_one_that_is_slow_is_waited_for_once(good: Any, install: Any) -> None:
    install(good, "neox-bad", "Bad", "open('tried', 'a').write('.')\nwhile True: pass")
    short = "import neox_core.hooks.guard as g; g.LISTING_S = 0.1; from neox_core.cli.main import neox; "
    for _ in range(2):
        done = good.python("-c", f"{short}neox.main(['plugins', 'list'])")
        assert "neox-bad" in done.stdout
        assert "to be listed" in done.stdout
    assert (good.work / "tried").read_text() == "."


def test_a_suspect_that_others_keep_from_the_processor_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernel tells of that is made up here: tests/unit/hooks/test_guard.py crowds a processor."""
    monkeypatch.setattr(suspects, "TRIED_S", 0.001)
    monkeypatch.setattr(suspects, "kept_waiting", lambda process: 60.0)
    assert suspects._try("neox-none") == ""
    monkeypatch.setattr(suspects, "kept_waiting", lambda process: 0.0)
    assert suspects._try("neox-none") == "hung"


def test_a_process_that_was_killed_by_chance_accuses_nobody_for_long(good: Any, install: Any) -> None:
    install(good, "neox-bad", "Bad", f"import os\nif not os.path.exists('later'):\n    open('later', 'w'); {DIES}")
    assert good.neox("plugins", "list").returncode == -9
    assert listed(good)["neox-bad"] == "ok: made for a test"
    assert notes(good) == []


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with watch():
        pass
    (place,) = (tmp_path / "neox" / "listing").iterdir()
    return place


def test_a_process_that_hangs_is_noticed_while_it_does(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = iter(["hung"])
    monkeypatch.setattr(suspects, "_try", lambda plugin: next(verdicts))
    with watch() as one:
        one.begin(plugin("neox-a"))
        with watch() as other:
            assert other.fault(plugin("neox-a"), again=False) is None, "it has only begun"
        (note,) = folder.glob("process-*")
        os.utime(note, (0, time.time() - 60))
        with watch() as other:
            assert other.fault(plugin("neox-b"), again=False) is None
            assert "hangs" in str(other.fault(plugin("neox-a"), again=False))
        with watch() as other:
            assert "hangs" in str(other.fault(plugin("neox-a"), again=False))


def test_a_plugin_that_hangs_past_all_limits_is_given_up(
    good: Any, install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(good, "neox-bad", "Bad", HANGS)
    monkeypatch.setattr(suspects, "TRIED_S", 2.0)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (good.folder, good.libraries))))
    assert suspects._try("neox-bad") == "hung"
    assert suspects._try("neox-good") == ""


def test_what_lies_in_the_cache_is_not_believed(good: Any, tmp_path: Path) -> None:
    listed(good)
    (folder,) = (good.cache / "neox" / "listing").iterdir()
    (folder / suspects._name("neox-good")).write_text("died 0123")
    (folder / "process-1-1").mkdir()
    os.mkfifo(folder / "process-2-2")
    (folder / "process-3-3").symlink_to("/dev/zero")
    (folder / "process-4-4").write_bytes(b"neox-good\x1b[31m" + b"\xff" * 1_000_000)
    (folder / "process-5-5").write_text("neox-good")
    (folder / "process-6-6").write_text("")
    os.utime(folder / "process-6-6", (0, 0))
    assert listed(good) == {"neox-good": "ok: made for a test"}
    assert not (folder / suspects._name("neox-good")).exists()


@pytest.mark.parametrize("home", ["/dev/null", "/proc", "/nowhere/at/all", "relative"])
def test_without_a_place_for_notes_plugins_are_listed_all_the_same(good: Any, home: str) -> None:
    assert listed(good, XDG_CACHE_HOME=home, HOME="/dev/null") == {"neox-good": "ok: made for a test"}


def test_a_file_system_without_locks_is_enough(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", flock)
    with watch() as one:
        one.begin(plugin("neox-a"))
        with watch() as other:
            assert other.fault(plugin("neox-a"), again=False) is None
    assert list(folder.iterdir()) == []


def test_a_watch_that_is_switched_off_or_cannot_be_loaded_is_done_without(site: Any, install: Any) -> None:
    install(site, "neox-good", "Good", watch="neox_good.nowhere:watch")
    assert listed(site) == {"neox-good": "ok: made for a test"}
    site.install_ours("neox-author")
    assert listed(site, NEOX_PLUGINS_DISABLE="neox-author") == {"neox-good": "ok: made for a test"}
    assert not site.cache.exists()

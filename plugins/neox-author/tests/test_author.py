"""What is installed is described; what an import does to its process is reported, and ends only that process."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from neox_author.try_imports import import_errors

from neox_core.cli.main import neox
from neox_core.errors import PluginError


def test_info_describes_this_plugin() -> None:
    text = CliRunner().invoke(neox, ["plugins", "info", "neox-author:plugins.check"]).stdout
    assert "plugin    neox-author" in text
    assert "target    neox_author.commands:check" in text


def test_an_import_that_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(1e6)\n")
    (tmp_path / "stays.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(1e6,)).start()\nx = 1\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = import_errors([("hangs:x", True), ("stays:x", True)], 3.0)
    assert said["stays:x"] == ""
    assert "takes longer than 3 s to import" in said["hangs:x"]
    assert "hangs.py" in said["hangs:x"]


def test_a_process_that_cannot_even_start_to_import_is_not_started_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neox_author.apart.python", lambda *_: (sys.executable, "-c", "1 / 0"))
    with pytest.raises(PluginError, match=r"cannot start .*: ZeroDivisionError: division by zero"):
        import_errors([("a:x", True), ("b:x", True)])

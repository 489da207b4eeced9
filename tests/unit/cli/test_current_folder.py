"""What lies in the current folder is never imported, whatever it is called."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neox_core.interpreter import python

SHADOW = "raise SystemExit('run from the current folder')\n"


@pytest.mark.parametrize("safe_path", [True, False] if sys.version_info >= (3, 11) else [False])
def test_a_module_is_run_with_its_arguments_and_without_the_current_folder(tmp_path: Path, safe_path: bool) -> None:
    """False is how Python 3.10 does it."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    here.mkdir()
    elsewhere.mkdir()
    for name in ("runpy", "colorsys", "told"):
        (here / f"{name}.py").write_text(SHADOW)
    (elsewhere / "told.py").write_text("import colorsys, sys\nprint(__name__, sys.argv[1:], '' in sys.path)\n")
    done = subprocess.run(
        python("told", "a b", "-m", safe_path=safe_path),
        cwd=here,
        env={**os.environ, "PYTHONPATH": str(elsewhere)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("__main__ ['a b', '-m'] False\n", "")


def test_commands_and_what_they_start_import_nothing_from_it(good: Any) -> None:
    good.install_ours("neox-author")
    good.install(
        "neox-tint",
        """
        import colorsys
        from neox_core.api import Component, hookimpl

        @hookimpl
        def neox_monitors():
            return [Component("tint", "neox_tint.parts:tint")]
        """,
        {"neox_tint/parts.py": "import chunk_of, colorsys\ntint = print", "chunk_of.py": ""},
    )
    for name in ("colorsys", "click", "chunk_of", "neox_core", "neox_tint"):
        (good.work / f"{name}.py").write_text(SHADOW)
    done = good.python("-c", "import sys; del sys.path[0]; from neox_core.cli.main import main; main()")
    assert "Usage: neox" in done.stdout + done.stderr
    started = "import sys; del sys.path[0]; from neox_core.cli.main import neox; neox.main(['plugins', 'check'])"
    done = good.python("-c", started)
    assert (done.returncode, done.stdout) == (0, "3 plugins, 6 offers, 0 faults\n"), done.stderr
    (good.work / "neox_core.py").unlink()  # which Python itself runs before it can be told not to
    done = good.neox("plugins", "check")
    assert (done.returncode, done.stdout) == (0, "3 plugins, 6 offers, 0 faults\n"), done.stderr


def test_a_plugin_in_the_current_folder_that_is_installed_editable_is_found(good: Any, offering: Any) -> None:
    """As `pip install -e .` does it: the folder is on the path behind the libraries, by a .pth file."""
    info = good.folder / "neox_mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: neox-mine\nVersion: 1.0\nKeywords: neox-api-1\n")
    (info / "entry_points.txt").write_text("[neox.plugins]\nmine = neox_mine.plugin\n")
    (good.folder / "mine.pth").write_text(f"{good.work}\n")
    package = good.work / "neox_mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "plugin.py").write_text(offering("Mine", "neox_mine"))
    (package / "parts.py").write_text("thing = print\n")
    begin = f"import site; site.addsitedir({str(good.folder)!r}); import sys; del sys.path[0]; "
    done = good.python("-c", begin + "from neox_core.cli.main import neox; neox.main(['plugins', 'list'])")
    assert "Mine\tneox-mine" in done.stdout, done.stderr

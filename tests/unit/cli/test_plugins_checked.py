"""`neox plugins info` and `neox plugins check`: what they import of installed throw-away distributions."""

import json
from typing import Any

import pytest


@pytest.fixture
def site(site: Any) -> Any:
    """With the commands `neox plugins info` and `check`."""
    site.install_ours("neox-author")
    return site


def rows(site: Any, *argv: str, **options: Any) -> list[dict[str, str]]:
    """What is listed of the other plugins."""
    done = site.neox("plugins", "list", "--json", *argv, **options)
    assert done.returncode == 0, done.stderr
    return [row for row in json.loads(done.stdout) if row["plugin"] != "neox-author"]


TORCH = "import pathlib\npathlib.Path(__file__).with_name('was-imported').touch()\n"


TARGET = {
    "raises": ("raise RuntimeError('cold')", "RuntimeError: cold"),
    "has no such attribute": ("other = 1", "has no attribute 'thing'"),
    "exits": ("import sys; sys.exit('bye')", "SystemExit: bye"),
    "kills the process": ("import os; os._exit(7)", "ends the process that imports it (exit code 7)"),
    "is killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "(signal 9)"),
}


@pytest.mark.parametrize("name", TARGET)
def test_check_imports_every_target_and_survives_it(good: Any, name: str, offering: Any) -> None:
    source, cause = TARGET[name]
    good.install("neox-bad", offering("Bad", "neox_bad"), {"neox_bad/parts.py": source})
    assert [row["status"] for row in rows(good)] == ["ok", "ok"]
    done = good.neox("plugins", "check")
    assert done.returncode == 3
    assert "fault: optimizer neox-bad:Bad 1.0: " in done.stdout
    assert cause in done.stdout
    assert "3 plugins, 6 offers, 1 fault" in done.stdout


def test_check_refuses_a_launcher_that_imports_torch_but_no_optimizer(good: Any, offering: Any) -> None:
    good.install("torch", "", {"torch/__init__.py": TORCH}, entry_points={})
    source = (
        offering("Bad", "neox_bad") + '\n@hookimpl\ndef neox_launchers():\n    return [Component("l", "neox_bad.l:f")]'
    )
    good.install(
        "neox-bad", source, {"neox_bad/parts.py": "import torch\nthing = 1", "neox_bad/l.py": "import torch\nf = 1"}
    )
    done = good.neox("plugins", "check")
    assert done.returncode == 3
    assert "launcher neox-bad:l 1.0" in done.stdout
    assert "imports torch" in done.stdout
    assert "1 fault" in done.stdout


def test_info_shows_how_a_reference_is_called(site: Any) -> None:
    """From its text: neither the reference nor the package around it is imported."""
    listing = """
    from neox_core.api import Component, hookimpl
    @hookimpl
    def neox_monitors():
        return [Component("mine", "neox_a.parts:Mine", ops=(("my_norm", "neox_a.inner.parts:my_norm"),))]
    @hookimpl
    def neox_kernels():
        return [Component("my_norm.quick", "neox_a.parts:QUICK")]
    """
    reference = (
        'import torch\n\ndef my_norm(x: torch.Tensor, eps: float = 1e-5) -> torch.Tensor:\n    """x [..., dim]."""\n'
    )
    files = {"neox_a/inner/__init__.py": "raise RuntimeError('imported')", "neox_a/inner/parts.py": reference}
    site.install("neox-a", listing, files)
    site.install_ours("neox-kernels")
    (op, norm, kernel) = site.neox_each(*(["plugins", "info", name] for name in ("my_norm", "mine", "my_norm.quick")))
    called = "my_norm(x: torch.Tensor, eps: float=1e-05) -> torch.Tensor"
    for line in ("of        neox-a:mine", "kernels   neox-a:my_norm.quick", f"called    {called}", "  x [..., dim]."):
        assert line in op["stdout"]
    assert f"op        my_norm, as neox_a.inner.parts:{called}" in norm["stdout"]
    assert f"op        my_norm, called like neox_a.inner.parts:{called}" in kernel["stdout"]


def test_a_component_whose_library_is_not_there(good: Any) -> None:
    source = """
    from neox_core.api import Component, hookimpl
    @hookimpl
    def neox_monitors():
        return [Component("web", "neox_web.parts:Web", needs=("no_such_library", "json"))]
    """
    good.install("neox-web", source, {"neox_web/parts.py": "import no_such_library"})
    assert {row["name"]: row["status"] for row in rows(good)} == {"web": "needs no_such_library", "Good": "ok"}
    assert "needs     no_such_library (not installed), json" in good.neox("plugins", "info", "web").stdout
    done = good.neox("plugins", "check")
    assert done.returncode == 0
    assert "note: monitor neox-web:web needs no_such_library" in done.stdout

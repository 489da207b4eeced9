import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from neox_core.api import Component, ConfigSection, setting
from neox_core.errors import DataError, PluginError
from neox_core.hooks.component import load_path, path_of
from neox_core.hooks.registry import Entry, PluginInfo
from neox_core.plan.runfile import ComponentRef
from neox_core.run.exit import write_failure


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str) -> str:
        (tmp_path / "test_target_module.py").write_text(text)
        monkeypatch.delitem(sys.modules, "test_target_module", raising=False)
        return "test_target_module:thing.part"

    return write


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no attribute 'thing'"),
        ("thing = 1", "has no attribute 'part'"),
        ("import no_such_library", "No module named 'no_such_library'"),
        ("raise RuntimeError('cold')", "RuntimeError: cold"),
        ("def f(:", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_whatever_a_target_does_is_an_error_with_its_path(module: Any, text: str, said: str) -> None:
    path = module(text)
    with pytest.raises(PluginError) as error:
        load_path(path)
    assert path in error.value.message
    assert said in error.value.message
    entry = Entry("norm", Component("n", path, needs=("no_such_library",)), PluginInfo("neox-a", "1.0", "a"))
    with pytest.raises(PluginError, match=r"norm neox-a:n 1\.0: cannot load") as error:
        entry.load()
    assert error.value.hint == "install what it needs: no_such_library"


def test_an_error_of_our_own_keeps_its_exit_code(module: Any) -> None:
    path = module("from neox_core.errors import DataError\nraise DataError('no file')")
    with pytest.raises(DataError):
        load_path(path)


def test_a_class_is_found_by_its_path() -> None:
    assert load_path(path_of(Component)) is Component


def test_needs_are_looked_for_and_not_imported() -> None:
    component = Component("n", "math:floor", needs=("no_such_library", "this"))
    assert component.missing() == ("no_such_library",)
    assert "this" not in sys.modules


NORM = """
class Norm:
    def __init__(self, dim, settings):
        self.check(dim)

    def check(self, dim):
        {body}
"""


@pytest.mark.parametrize(
    ("text", "arguments", "said"),
    [
        (NORM.format(body="raise ValueError('odd\\n  dim')"), (3,), "ValueError: odd dim (test_target_module, line 7)"),
        (
            NORM.format(body="len(dim)"),
            (3,),
            "TypeError: object of type 'int' has no len() (test_target_module, line 7)",
        ),
        (NORM.format(body="raise SystemExit(0)"), (3,), "SystemExit: 0 (test_target_module, line 7)"),
        (NORM, (), "missing 1 required positional argument: 'settings'"),
        ("def Norm(dim):\n    pass", (3,), "takes 1 positional argument but 2 were given"),
    ],
)
def test_what_a_component_raises_names_it_and_the_place(
    module: Any, text: str, arguments: tuple[Any, ...], said: str
) -> None:
    path = module(text).partition(":")[0]
    reference = ComponentRef("norm", "n", "neox-a", "1.0", f"{path}:Norm")
    with pytest.raises(PluginError) as error:
        reference.make(*arguments)
    assert error.value.message.startswith("norm neox-a:n 1.0 failed: ")
    assert said in error.value.message
    assert "--debug" in error.value.hint


def test_what_a_component_refuses_stays_as_it_is(module: Any) -> None:
    path = module(NORM.format(body="from neox_core.errors import DataError; raise DataError('no file')"))
    reference = ComponentRef("norm", "n", "neox-a", "1.0", f"{path.partition(':')[0]}:Norm")
    with pytest.raises(DataError, match=r"^no file$"):
        reference.make(3)


def test_a_component_that_cannot_be_imported_names_its_plugin(module: Any) -> None:
    path = module("import no_such_library").partition(":")[0]
    with pytest.raises(PluginError, match=r"norm neox-a:n 1\.0: cannot load .*no_such_library") as error:
        ComponentRef("norm", "n", "neox-a", "1.0", f"{path}:Norm").load()
    assert "plugins check" in error.value.hint
    with pytest.raises(PluginError, match=r"norm neox-b:n 1\.0: cannot load") as error:
        ComponentRef("norm", "n", "neox-b", "1.0", "gone_since_the_save.norm:Norm").load()
    assert error.value.hint == "install neox-b 1.0"


def test_an_error_is_placed_in_the_plugin_that_it_came_through_last(module: Any, tmp_path: Path) -> None:
    """What a component raises while it works names its plugin in the report of the rank, and others are not named."""
    info = tmp_path / "neox_a-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: neox-a\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[neox.plugins]\na = test_target_module\n")
    load_path(module("class thing:\n    def part(call):\n        return call()\n"))
    through = load_path("test_target_module:thing.part")
    for call, said in (
        (lambda: through(lambda: 1 // 0), " (in neox-a 1.0: test_target_module, line 3, in part)"),
        (lambda: 1 // 0, ""),
    ):
        with pytest.raises(ZeroDivisionError) as caught:
            call()
        write_failure(tmp_path, 3, caught.value)
        report = json.loads((tmp_path / "failure.rank3.json").read_text())
        assert report["message"] == f"ZeroDivisionError: {caught.value}{said}"
        assert (report["rank"], report["exit_code"]) == (3, 1)


@frozen
class Named:
    """Settings that an offer names.

    And what follows the first line.
    """

    lr: float = setting(0.1, help="Rate.")


@frozen
class Faulty:
    lr: float = 0.1


def test_settings_may_be_named_by_import_path() -> None:
    section, component = ConfigSection("s", f"{__name__}:Named"), Component("c", "math:floor", f"{__name__}:Named")
    assert section.settings is component.settings is Named
    assert section.summary == "Settings that an offer names."
    ConfigSection("s", "not_there.at_all:Settings")  # imports nothing


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("not_there.at_all:Settings", "cannot load not_there.at_all:Settings"),
        ("math:floor", "math:floor has to be an attrs class"),
        (f"{__name__}:Faulty", "lr is not made by setting()"),
    ],
)
def test_a_fault_of_settings_that_are_named_comes_when_they_are_read(path: str, said: str) -> None:
    with pytest.raises(PluginError) as error:
        assert Component("c", "math:floor", path).settings
    assert said in error.value.message


def test_listing_imports_no_section_of_a_plugin() -> None:
    code = "import sys; from neox_core.hooks.loader import load_plugins; load_plugins(); print('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not [name for name in done.stdout.split() if ".config.sections" in name]

"""Throw-away distributions, really installed: in a folder of their own, seen by processes that see no other plugin."""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import tomli
from keep_failures import pytest_terminal_summary

from neox_core.hooks import component

__all__ = ["pytest_terminal_summary"]
ROOT = Path(__file__).resolve().parent.parent
LIGHT_LIBRARIES = (
    "attr",
    "attrs",
    "cattr",
    "cattrs",
    "click",
    "exceptiongroup",
    "neox_core",
    "pluggy",
    "rich",
    "ruamel",
    "tomli",
    "typing_extensions",
)
"""What the light zone imports, our own package included; no torch, and no other distribution's metadata."""


LONG = ("test_ops.py", "test_short_runs_of_keys.py", "test_layouts.py", "test_guarded_runs.py", "test_onebit.py")
"""The files that take longest: they come first, so that none is left to one process at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Of tests with and without ranks, `-k` may pick none."""
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and session.config.option.keyword:
        session.exitstatus = pytest.ExitCode.OK


class Site:
    """An environment with nothing in it but the light zone and what `install` puts there."""

    def __init__(self, root: Path, libraries: Path) -> None:
        self.folder = root / "site"
        self.wheels = root / "wheels"
        self.work = root / "work"
        self.cache = root / "cache"
        self.libraries = libraries
        for folder in (self.folder, self.wheels, self.work):
            folder.mkdir()

    def wheel(
        self,
        name: str,
        files: Mapping[str, str],
        *,
        version: str = "1.0",
        keywords: str | None = "neox-api-1",
        entry_points: Mapping[str, str] | None = None,
        watch: str = "",
    ) -> Path:
        """A wheel of `files` (path -> text); its entry points of our group default to `<package>.plugin`.

        watch: the entry point of what watches over the listing of plugins.
        """
        package = name.replace("-", "_")
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        metadata += f"Keywords: {keywords}\n" if keywords else ""
        points = {package: f"{package}.plugin"} if entry_points is None else entry_points
        info = f"{package}-{version}.dist-info"
        contents = {path: dedent(text) for path, text in files.items()}
        contents[f"{info}/METADATA"] = metadata
        contents[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: by hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        lines = "".join(f"{point} = {value}\n" for point, value in points.items())
        lines += f"[neox.watch]\nwatch = {watch}\n" if watch else ""
        contents[f"{info}/entry_points.txt"] = f"[neox.plugins]\n{lines}"
        record = "".join(f"{path},{_hash(text)},{len(text.encode())}\n" for path, text in contents.items())
        contents[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
        path = self.wheels / f"{package}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for file, text in contents.items():
                archive.writestr(file, text)
        return path

    def install(self, name: str, plugin: str, more: Mapping[str, str] | None = None, **options: Any) -> None:
        """Install a distribution whose listing module is the text `plugin`; `more` holds other files of it."""
        package = name.replace("-", "_")
        files = {f"{package}/__init__.py": "", f"{package}/plugin.py": plugin, **(more or {})}
        with zipfile.ZipFile(self.wheel(name, files, **options)) as wheel:
            wheel.extractall(self.folder)  # all that pip does for a wheel of pure Python without scripts

    def install_ours(self, name: str, *parts: str) -> None:
        """Install some modules and folders, or all, of one of the plugins of this project."""
        source = ROOT / "plugins" / name / name.replace("-", "_")
        parts = parts or (".",)
        paths = [path for part in parts for path in (source / part, *(source / part).rglob("*.py")) if path.is_file()]
        files = {path.relative_to(source.parent).as_posix(): path.read_text(encoding="utf-8") for path in paths}
        points = tomli.loads((source.parent / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
        watch = next(iter(points.get("neox.watch", {}).values()), "")
        self.install(name, files.pop(f"{source.name}/plugin.py"), files, watch=watch)

    def python(self, *argv: str, env: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        """Run Python in the work folder, without site-packages."""
        paths = os.pathsep.join(map(str, (self.folder, self.libraries)))
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("NEOX_", "PYTHON"))}
        return subprocess.run(
            [sys.executable, "-S", *argv],
            cwd=self.work,
            env={
                **clean,
                "PYTHONPATH": paths,
                "PYTHONDONTWRITEBYTECODE": "1",
                "XDG_CACHE_HOME": str(self.cache),
                **(env or {}),
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def neox(self, *argv: str, env: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        return self.python("-m", "neox_core", *argv, env=env)

    def neox_each(self, *argvs: Sequence[str], env: Mapping[str, str] | None = None) -> "list[dict[str, Any]]":
        """Several command lines in one fresh process: exit_code, stdout and stderr of each."""
        done = self.python("-c", RUN_EACH, json.dumps(argvs), env=env)
        assert done.returncode == 0, done.stderr
        answers: list[dict[str, Any]] = json.loads(done.stdout)
        return answers


RUN_EACH = """
import json, sys, traceback
from click.testing import CliRunner
from neox_core.cli.main import neox
results = [CliRunner().invoke(neox, argv) for argv in json.loads(sys.argv[1])]
for result in results:
    if result.exception and not isinstance(result.exception, SystemExit):
        traceback.print_exception(*result.exc_info)
        sys.exit("a command raised")
print(json.dumps([{name: getattr(r, name) for name in ("exit_code", "stdout", "stderr")} for r in results]))
"""


def _hash(text: str) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@pytest.fixture(scope="session")
def light_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("light")
    for name in LIGHT_LIBRARIES:
        spec = find_spec(name)
        if spec is None:  # exceptiongroup is for Python 3.10 only
            continue
        source = Path(next(iter(spec.submodule_search_locations or [spec.origin or ""])))
        (folder / source.name).symlink_to(source)
        for compiled in source.parent.glob("*__mypyc*"):  # tomli's compiled part has a name of its own
            (folder / compiled.name).unlink(missing_ok=True)
            (folder / compiled.name).symlink_to(compiled)
    core = folder / "neox_core-0.dist-info"
    core.mkdir()
    (core / "METADATA").write_text(f"Metadata-Version: 2.1\nName: neox-core\nVersion: {version('neox-core')}\n")
    return folder


@pytest.fixture
def site(tmp_path: Path, light_libraries: Path) -> Site:
    return Site(tmp_path, light_libraries)


PAGES = Path(__file__).resolve().parents[1] / "docs/plugins"
FILE = re.compile(r"^`([\w./]+)`[^\n]*:\n\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def install_page(page: str, folder: Path, change: tuple[str, str] = ("", "")) -> dict[str, str]:
    """Write the example of a page as an installed distribution, and return its files. change: of the text of each."""
    files = dict(FILE.findall((PAGES / f"{page}.md").read_text("utf-8")))
    for path, text in files.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text.replace(*change) if change[0] else text)
    for package in {path.partition("/")[0] for path in files} - {"tests"}:
        (folder / package / "__init__.py").touch()
        info = folder / f"{package}-1.0.dist-info"
        info.mkdir()
        name = package.replace("_", "-")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nKeywords: neox-api-1\n")
        (info / "entry_points.txt").write_text(f"[neox.plugins]\n{name} = {package}.plugin\n")
    return files


@pytest.fixture
def build_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Installs the example of a page, and returns its files."""
    packages: set[str] = set()

    def build(page: str, change: tuple[str, str] = ("", "")) -> dict[str, str]:
        files = install_page(page, tmp_path, change)
        packages.update(path.partition("/")[0] for path in files if not path.startswith("tests/"))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # for processes that a check starts
        return files

    yield build
    for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
        del sys.modules[name]
    component._class_at.cache_clear()  # its classes are those of the modules that are gone

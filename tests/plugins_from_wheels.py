"""Build every distribution, then test each plugin alone from its wheel: `plugins_from_wheels.py TEMP [NAME...]`.

Alone means: what can be imported is neox-core, that plugin and third-party libraries, and of other plugins only
neox-author, which has `neox plugins check` and the kit, and those that it depends on or that its extra `test` names.
Tests that fail beside others are tried once more by themselves. At the end all wheels are installed together and the
tests under tests/installed run.
"""

import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from subprocess import CalledProcessError

import tomli
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "tests" / "helpers"), str(ROOT / "requirements")]
from alone import Alone, make_python, run  # noqa: E402, found by the line above
from install_here import remove_links  # noqa: E402
from warm_start import Template, can_fork  # noqa: E402

PIP = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
AT_ONCE = 3
"""Plugins that are tested beside each other."""
WITH_DEADLINES = ("neox-fsspec", "neox-launchers")
"""Whose tests expect something within a time, and mostly wait for it: beside the rest, which comes after them where
processors are short."""
CHECKER = "neox-author"
"""The plugin with the command `neox plugins check` and the kit."""
PRELOADED = ("numpy", "pytest", "torch._dynamo")
"""What the tests of most plugins import, with torch: they run in forks of a process that has them."""
FIRST = ("neox-triton", "neox-gpt", "neox-deepspeed", "neox-retrieval", "neox-autotuning", "neox-hf")
"""Those that take longest, so that nothing is left to wait for at the end."""


def build_wheel(source: Path, wheels: Path) -> Path:
    """The wheel of a distribution, unpacked in a folder of its own: pure Python needs no more to be importable."""
    folder = wheels / source.name
    (wheel,) = WheelBuilder(str(source)).build(directory=str(folder), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    return folder


def options_of(*more: str) -> list[str | Path]:
    """Of pytest."""
    return ["-q", "-c", ROOT / "pyproject.toml", "--rootdir", ROOT, *(more or ("-p", "no:cacheprovider"))]


def stated_by(name: str, extra: str = "") -> list[str]:
    """The distributions that a plugin depends on, with those of one of its extras; of others nothing is known."""
    file = ROOT / "plugins" / name / "pyproject.toml"
    if not file.is_file():
        return []
    project = tomli.loads(file.read_text(encoding="utf-8"))["project"]
    stated = (*project["dependencies"], *project.get("optional-dependencies", {}).get(extra, ()))
    return [Requirement(each).name for each in stated]


def make_alone(name: str, built: Mapping[str, Path], template: Template | None) -> Alone:
    needed = ["neox-core", CHECKER, name, *stated_by(name, "test")]
    for each in needed:  # and what these depend on, in turn
        needed += [other for other in stated_by(each) if each in built and other not in needed]
    paths = [built[each] / "unpacked" for each in needed if each in built]
    return make_python(built[name] / "python", paths, template)


def try_alone(name: str, alone: Alone, kept: Path, outside: Path) -> None:
    """Check the plugin and run its tests. kept: where pytest remembers those that fail."""
    behind = name not in WITH_DEADLINES
    alone.run("neox_core", "plugins", "check", cwd=outside, behind=behind)
    options = options_of(*remembering(kept))
    alone.run("pytest", *options, ROOT / "plugins" / name / "tests", cwd=outside, behind=behind)


def try_again(name: str, alone: Alone, kept: Path, outside: Path) -> None:
    """Only those tests that failed, in a process from the beginning: of two results that differ, both are shown."""
    sys.stdout.write(f"{name}: once more, with nothing beside it, what failed\n")
    options = options_of(*remembering(kept), "--last-failed")
    run(alone.python, "-m", "pytest", *options, ROOT / "plugins" / name / "tests", cwd=outside)


def remembering(folder: Path) -> tuple[str, ...]:
    return ("-o", f"cache_dir={folder / 'cache'}")


def failing(names: Iterable[str], test: Callable[[str], None], at_once: int) -> list[str]:
    """Those of which the test fails."""

    def fails(name: str) -> bool:
        try:
            test(name)
        except CalledProcessError:
            return True
        return False

    names = list(names)
    with ThreadPoolExecutor(at_once) as pool:
        return [name for name, failed in zip(names, pool.map(fails, names), strict=True) if failed]


def main() -> None:
    work = Path(sys.argv[1]).resolve()
    plugins = sorted(path.parent.name for path in (ROOT / "plugins").glob("*/pyproject.toml"))
    names = sys.argv[2:] or plugins
    outside = work / "outside"  # nothing is importable from the checkout by accident
    outside.mkdir(parents=True, exist_ok=True)
    sources = {"neox-core": ROOT, **{name: ROOT / "plugins" / name for name in plugins}}
    built = {name: build_wheel(source, work / "wheels") for name, source in sources.items()}
    remove_links()
    run(*PIP, "uninstall", "-y", *built)

    template = Template(*PRELOADED) if can_fork() else None
    pythons = {name: make_alone(name, built, template) for name in names}

    def test(name: str) -> None:
        try_alone(name, pythons[name], built[name], outside)

    timed = [name for name in names if name in WITH_DEADLINES]
    rest = sorted((name for name in names if name not in timed), key=lambda name: name not in FIRST)
    with ThreadPoolExecutor() as lanes:
        first = list(chain(*lanes.map(failing, (timed, rest), (test, test), (len(WITH_DEADLINES), AT_ONCE))))
    failed = failing(first, lambda name: try_again(name, pythons[name], built[name], outside), 1)
    run(*PIP, "install", "--no-deps", *(next(folder.glob("*.whl")) for folder in built.values()))
    run(sys.executable, "-m", "pip", "check")
    run(sys.executable, "-m", "pytest", *options_of(), ROOT / "tests" / "installed", cwd=outside)
    if failed:
        sys.exit(f"failed alone: {', '.join(failed)}")


if __name__ == "__main__":
    main()

"""Build every distribution, then test each plugin alone from its wheel: `plugins_from_wheels.py TEMP [NAME...]`.

Alone means: what can be imported is neox-core, that plugin and third-party libraries, and of other plugins only those
that its extra `test` names. At the end all wheels are installed together and the tests under tests/installed run.
"""

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import tomli
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PIP = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
PATHS = Path(sysconfig.get_path("purelib")) / "neox-under-test.pth"
"""Read by every process of this Python, whatever environment variables it is given."""


def run(*argv: str | Path, cwd: Path = ROOT) -> None:
    subprocess.run([str(part) for part in argv], cwd=cwd, check=True)


def build_wheel(source: Path, wheels: Path) -> Path:
    """The wheel of a distribution, unpacked in a folder of its own: pure Python needs no more to be importable."""
    folder = wheels / source.name
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=source)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    return folder


def run_tests(folder: Path, outside: Path) -> None:
    options = ("-q", "-c", ROOT / "pyproject.toml", "--rootdir", ROOT, "-p", "no:cacheprovider")
    run(sys.executable, "-m", "pytest", *options, folder, cwd=outside)


def try_alone(name: str, built: dict[str, Path], outside: Path) -> None:
    project = tomli.loads((ROOT / "plugins" / name / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = [Requirement(each).name for each in project.get("optional-dependencies", {}).get("test", ())]
    needed = ["neox-core", name, *(each for each in extra if each in built)]
    PATHS.write_text("".join(f"{built[each] / 'unpacked'}\n" for each in needed), encoding="utf-8")
    try:
        run(sys.executable, "-m", "neox_core", "plugins", "check", cwd=outside)
        run_tests(ROOT / "plugins" / name / "tests", outside)
    finally:
        PATHS.unlink()


def main() -> None:
    work = Path(sys.argv[1]).resolve()
    plugins = sorted(path.parent.name for path in (ROOT / "plugins").glob("*/pyproject.toml"))
    names = sys.argv[2:] or plugins
    outside = work / "outside"  # nothing is importable from the checkout by accident
    outside.mkdir(parents=True, exist_ok=True)
    built = {name: build_wheel(ROOT / "plugins" / name, work / "wheels") for name in plugins}
    built["neox-core"] = build_wheel(ROOT, work / "wheels")
    run(*PIP, "uninstall", "-y", *built)
    failed = []
    for name in names:
        try:
            try_alone(name, built, outside)
        except subprocess.CalledProcessError:
            failed.append(name)
    run(*PIP, "install", "--no-deps", *(next(folder.glob("*.whl")) for folder in built.values()))
    run(sys.executable, "-m", "pip", "check")
    run_tests(ROOT / "tests" / "installed", outside)
    if failed:
        sys.exit(f"failed alone: {', '.join(failed)}")


if __name__ == "__main__":
    main()

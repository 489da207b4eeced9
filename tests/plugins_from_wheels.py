"""Build every distribution, then test each plugin alone from its wheel: `plugins_from_wheels.py TEMP [NAME...]`.

Alone means: the environment holds neox-core, that plugin and third-party libraries, and of other plugins only those
that its extra `test` names. At the end all wheels are installed together and the tests under tests/installed run.
"""

import subprocess
import sys
from pathlib import Path

import tomli
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PIP = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]


def run(*argv: str | Path, cwd: Path = ROOT) -> None:
    subprocess.run([str(part) for part in argv], cwd=cwd, check=True)


def test(folder: Path, outside: Path) -> None:
    options = ("-q", "-c", ROOT / "pyproject.toml", "--rootdir", ROOT, "-p", "no:cacheprovider")
    run(sys.executable, "-m", "pytest", *options, folder, cwd=outside)


def test_alone(name: str, built: dict[str, Path], outside: Path) -> None:
    project = tomli.loads((ROOT / "plugins" / name / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extra = [Requirement(each).name for each in project.get("optional-dependencies", {}).get("test", ())]
    needed = [name, *(each for each in extra if each in built)]
    run(*PIP, "install", "--no-deps", *(built[each] for each in needed))
    try:
        run(sys.executable, "-m", "pip", "check")
        run(sys.executable, "-m", "neox_core", "plugins", "check", cwd=outside)
        test(ROOT / "plugins" / name / "tests", outside)
    finally:
        run(*PIP, "uninstall", "-y", *needed)


def main() -> None:
    work = Path(sys.argv[1])
    plugins = sorted(path.parent.name for path in (ROOT / "plugins").glob("*/pyproject.toml"))
    names = sys.argv[2:] or plugins
    wheels = work / "wheels"
    outside = work / "outside"  # nothing is importable from the checkout by accident
    outside.mkdir(parents=True, exist_ok=True)
    sources = [ROOT, *(ROOT / "plugins" / name for name in plugins)]
    run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", wheels, *sources)
    built = {wheel.name.split("-")[0].replace("_", "-"): wheel for wheel in wheels.glob("neox_*.whl")}
    run(*PIP, "uninstall", "-y", *built)
    run(*PIP, "install", "--no-deps", built["neox-core"])
    failed = []
    for name in names:
        try:
            test_alone(name, built, outside)
        except subprocess.CalledProcessError:
            failed.append(name)
    run(*PIP, "install", "--no-deps", *(built[name] for name in plugins))
    test(ROOT / "tests" / "installed", outside)
    if failed:
        sys.exit(f"failed alone: {', '.join(failed)}")


if __name__ == "__main__":
    main()

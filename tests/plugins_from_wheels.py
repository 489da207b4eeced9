"""Build every distribution, then test each plugin alone from its wheel: `plugins_from_wheels.py TEMP [NAME...]`.

Alone means: the environment holds neox-core, that plugin and third-party libraries, and no other plugin. At the end
all wheels are installed together and the tests under tests/installed run.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PIP = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]


def run(*argv: str | Path, cwd: Path = ROOT) -> None:
    subprocess.run([str(part) for part in argv], cwd=cwd, check=True)


def test(folder: Path, outside: Path) -> None:
    options = ("-q", "-c", ROOT / "pyproject.toml", "--rootdir", ROOT, "-p", "no:cacheprovider")
    run(sys.executable, "-m", "pytest", *options, folder, cwd=outside)


def main() -> None:
    work = Path(sys.argv[1])
    names = sys.argv[2:] or sorted(path.parent.name for path in (ROOT / "plugins").glob("*/pyproject.toml"))
    wheels = work / "wheels"
    outside = work / "outside"  # nothing is importable from the checkout by accident
    outside.mkdir(parents=True, exist_ok=True)
    sources = [ROOT, *(ROOT / "plugins" / name for name in names)]
    run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", wheels, *sources)
    built = {wheel.name.split("-")[0].replace("_", "-"): wheel for wheel in wheels.glob("neox_*.whl")}
    run(*PIP, "uninstall", "-y", *built)
    run(*PIP, "install", "--no-deps", built["neox-core"])
    for name in names:
        run(*PIP, "install", "--no-deps", built[name])
        run(sys.executable, "-m", "pip", "check")
        run(sys.executable, "-m", "neox_core", "plugins", "check", cwd=outside)
        test(ROOT / "plugins" / name / "tests", outside)
        run(*PIP, "uninstall", "-y", name)
    run(*PIP, "install", "--no-deps", *(built[name] for name in names))
    test(ROOT / "tests" / "installed", outside)


if __name__ == "__main__":
    main()

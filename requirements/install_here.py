"""Install neox-core and every plugin, editable, from wheels made in this process: pip would start three for each."""

import subprocess
import sys
import tempfile
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    plugins = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
    with tempfile.TemporaryDirectory() as folder:
        wheels = [
            wheel
            for source in (ROOT, *plugins)
            for wheel in WheelBuilder(str(source)).build(directory=folder, versions=["editable"])
        ]
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--force-reinstall"]
        sys.exit(subprocess.run([*install, *wheels], check=False).returncode)


if __name__ == "__main__":
    main()

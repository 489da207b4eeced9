"""Install neox-core and every plugin, editable, from wheels made in this process: pip would start three for each.

A package is a link in site-packages. With the path that pip leaves for each, every import would search 54 more folders.
"""

import json
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).resolve().parent.parent
LEFT_BY_PIP = "_editable_impl_"


def link(path: Path) -> None:
    """Put a link in the place of what pip has left of an editable package, also in the list of what is installed."""
    site, name = path.parent, path.stem.removeprefix(LEFT_BY_PIP)
    package = Path(path.read_text(encoding="utf-8").strip(), name)
    (info,) = site.glob(f"{name}-*.dist-info")
    (site / name).symlink_to(package, target_is_directory=True)
    path.unlink()
    source = {"url": package.parent.as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(source), encoding="utf-8")
    listed = (info / "RECORD").read_text(encoding="utf-8")
    listed = re.sub(rf"^{re.escape(path.name)},.*$", f"{name},,", listed, flags=re.MULTILINE)
    (info / "RECORD").write_text(re.sub(r"(/direct_url\.json),.*", r"\1,,", listed), encoding="utf-8")


def remove_links() -> None:
    """Before pip removes or replaces packages: for each that is a link it looks through all of site-packages."""
    for path in Path(sysconfig.get_path("purelib")).glob("neox_*"):
        if path.is_symlink():
            path.unlink()


def main() -> None:
    plugins = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))
    with tempfile.TemporaryDirectory() as folder:
        wheels = [
            wheel
            for source in (ROOT, *plugins)
            for wheel in WheelBuilder(str(source)).build(directory=folder, versions=["editable"])
        ]
        remove_links()
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--force-reinstall"]
        subprocess.run([*install, *wheels], check=True)
    for path in Path(sysconfig.get_path("purelib")).glob(f"{LEFT_BY_PIP}neox_*.pth"):
        link(path)


if __name__ == "__main__":
    main()

"""`neox --plugins-dir FOLDER`: plugins that are one file each, beside a config, for one command and what it starts.

Each file is copied into the cache folder under its digest, with the metadata of a distribution whose version has the
digest too. So it is listed, blamed, compared between ranks and recorded in run.json as what is installed, and a change
of the file during a run changes nothing. Nothing but the command line names the folder.
"""

import hashlib
import importlib
import os
import sys
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

import click

from neox_core.cli.offered import NOTES
from neox_core.errors import UsageError
from neox_core.files import cache_folder, read_bytes, replacing
from neox_core.hooks.installed import API
from neox_core.hooks.markers import GROUP, ONE_FILE

MAX_BYTES, MAX_FILES = 1 << 20, 100


def use_folder(ctx: click.Context, folder: Path) -> None:
    """Install the files of the folder for this process and those that it starts. Raises UsageError."""
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix == ".py" and file.name[0] not in "._")
        if not files or len(files) > MAX_FILES:
            raise UsageError(f"--plugins-dir {folder}: has {len(files)} files *.py, not 1 to {MAX_FILES}")
        ctx.meta[NOTES] = [_install(file) for file in files]
    except OSError as error:
        raise UsageError(f"--plugins-dir {error.filename or folder}: {error.strerror or error}") from error


def _install(file: Path) -> str:
    """Install one file. Returns a line: the plugin, its version, and where it is."""
    name, source = file.stem, read_bytes(file, MAX_BYTES)
    if not name.isidentifier() or not name.isascii():
        raise UsageError(f"{file}: its name is not that of a module", hint="rename it, such as my_norm.py")
    digest = hashlib.sha256(source).hexdigest()
    version, home = f"{ONE_FILE}{digest[:12]}", cache_folder() / "plugins-dir" / digest
    if os.pathsep in str(home):
        raise UsageError(f"{home}: {os.pathsep!r} in the name of the cache folder", hint="set XDG_CACHE_HOME")
    _refuse_taken(file, home / file.name)
    info = home / f"{name}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nKeywords: neox-api-{API}\n"
    points = f"[{GROUP}]\n{name} = {name}\n"
    for path, content in {
        home / file.name: source,
        info / "METADATA": metadata.encode(),
        info / "entry_points.txt": points.encode(),
    }.items():
        with replacing(path) as new:
            new.write_bytes(content)
    sys.path.append(str(home))
    known = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([*([known] if known else []), str(home)])
    importlib.invalidate_caches()
    return f"{name} {version} is {file.resolve()}"


def _refuse_taken(file: Path, copy: Path) -> None:
    """In the processes of a run the file comes before what is installed, and must not replace it."""
    try:
        found = find_spec(file.stem)
    except (ImportError, ValueError):
        found = None
    if found is not None and found.origin != str(copy):
        raise UsageError(f"{file}: {file.stem} is a module of this environment", hint="rename the file")
    try:
        installed = distribution(file.stem)
    except PackageNotFoundError:
        return
    if found is None:
        raise UsageError(f"{file}: {installed.name} is installed", hint="rename the file")

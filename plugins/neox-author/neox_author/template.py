"""The templates of `neox plugins new`: those of a kind are beside the check of its contract."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from string import Template

from neox_author import testing
from neox_core.hooks.kinds import Kind

FOLDER = "templates"
SUFFIX = ".txt"
_COMMON = Path(__file__).parent / FOLDER
_REQUIRES, _CALLED = f"requires{SUFFIX}", f"called{SUFFIX}"


def kit_of(kind: Kind) -> str:
    """The import path of the check of a kind's contract; "" where there is none."""
    check = f"check_{_slug(kind)}"
    return kind.kit or (f"{testing.__name__}:{check}" if check in testing.__all__ else "")


def folder_of(kind: Kind) -> Path | None:
    """The folder with the modules of a plugin that offers a component of the kind; None where there is none."""
    kit = kit_of(kind)
    found = find_spec(kit.partition(":")[0]) if kit else None
    folders = [Path(each) / FOLDER / _slug(kind) for each in (found and found.submodule_search_locations) or ()]
    return next((folder for folder in folders if folder.is_dir()), None)


def _slug(kind: Kind) -> str:
    return kind.name.replace(" ", "_")


def requirements_of(folder: Path) -> tuple[str, ...]:
    """What the modules of a template import, beyond neox and attrs."""
    file = folder / _REQUIRES
    return tuple(file.read_text(encoding="utf-8").split()) if file.is_file() else ()


def called_in(folder: Path, name: str) -> str:
    """What a component of the name is called, where names of its kind have more than one part."""
    file = folder / _CALLED
    return Template(file.read_text(encoding="utf-8").strip()).substitute(name=name) if file.is_file() else name


def filled(folder: Path, package: str, values: Mapping[str, str]) -> dict[str, str]:
    """The files of a plugin, by their paths.

    folder: of the kind's template
    package: the name of the import package
    values: of the `$name` in templates
    """
    files = {f"{package}/__init__.py": ""}
    for module in folder.glob("*.py"):  # without names to fill in, so that the kit can import it too
        files[f"{package}/{module.name}"] = module.read_text(encoding="utf-8")
    for root, prefix in ((_COMMON, ""), (folder, f"{package}/")):
        for file in sorted(root.rglob(f"*{SUFFIX}")):
            if file.name not in (_REQUIRES, _CALLED):
                path = f"{prefix}{file.relative_to(root).as_posix().removesuffix(SUFFIX)}"
                files[path] = Template(file.read_text(encoding="utf-8")).substitute(values)
    return files

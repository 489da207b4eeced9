"""Import paths that API 1 documented and that have moved since: each gives today's module."""

import sys
from functools import cache
from importlib import import_module, util
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

FOLDERS = ("neox_core.build", "neox_core.train")
"""They hold nothing but modules that have moved."""


@cache
def tables() -> dict[str, Any]:
    """`modules`: old path -> today's module; `names`: module -> today's module -> names that have moved out of it."""
    import tomli  # when an old path is asked for

    return tomli.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def moved(module: str, name: str) -> Any:
    """What a module calls where it lacks a name. Raises AttributeError for one that never was there."""
    for home, names in tables()["names"][module].items():
        if name in names:
            package = home.partition(".")[0]
            if util.find_spec(package) is None:
                raise ImportError(f"{module}.{name} is in {home} now: install {package.replace('_', '-')}")
            return getattr(import_module(home), name)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


class _OldPaths:
    """A finder and loader that Python tries after its own."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith("neox_core.") or (name not in FOLDERS and name not in tables()["modules"]):
            return None
        return ModuleSpec(name, self, is_package=name in FOLDERS)  # type: ignore[arg-type] # a loader by its methods

    def create_module(self, spec: ModuleSpec) -> None:
        """None: an empty module."""

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ not in FOLDERS:
            sys.modules[module.__name__] = import_module(tables()["modules"][module.__name__])

    def get_code(self, name: str) -> CodeType | None:
        """The code that `python -m name` runs."""
        module = tables()["modules"][name]
        spec = util.find_spec(module)
        loader: Any = spec and spec.loader  # modules have files, so they have code
        return loader.get_code(module) if loader is not None else None


def install() -> None:
    """Make the interpreter find the old paths."""
    sys.meta_path.append(_OldPaths())

"""Import paths that API 1 documented and that have moved since: each gives today's module."""

import sys
from importlib import import_module, util
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

MOVED = {
    "neox_core.build.corpus": "neox_core.contracts.data",
    "neox_core.build.native": "neox_core.kernels.compile_c",
    "neox_core.config.structure": "neox_core.config.schema.structure",
    "neox_core.contracts.attention": "neox_gpt.contracts",
    "neox_core.contracts.family": "neox_hf.contracts",
    "neox_core.contracts.interchange": "neox_hf.contracts",
    "neox_core.contracts.model": "neox_gpt.contracts",
    "neox_core.parallel.linear": "neox_gpt.linear",
    "neox_core.parallel.matmul": "neox_gpt.matmul",
    "neox_core.testing.layers": "neox_gpt.testing.layers",
    "neox_core.testing.layouts": "neox_gpt.testing.layouts",
    "neox_core.train.rank": "neox_core.run.rank",
}
NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "neox_core.contracts": {
        "neox_gpt.contracts": (
            "Activation",
            "LayoutShape",
            "Norm",
            "Position",
            "PositionShape",
            "ScoreBias",
            "SparseKernel",
            "SparseLayout",
            "SparseUse",
        ),
        "neox_hf.contracts": ("CheckpointFormat", "ModelFamily", "WeightRule"),
    },
    "neox_core.testing": {
        "neox_author.testing": (
            "assert_light",
            "build",
            "check_data_backend",
            "check_launcher",
            "check_lr_schedule",
            "check_monitor",
            "check_objective",
            "check_optimizer",
            "check_scheduler",
            "check_tokenizer",
            "example_plan",
            "load_only",
        ),
        "neox_gpt.testing": ("check_activation", "check_norm", "check_position", "check_sparse_layout"),
    },
}
"""Names that have moved out of a module that is still there: module -> today's module -> names."""
FOLDERS = ("neox_core.build", "neox_core.train")
"""They hold nothing else."""


def moved(module: str, name: str) -> Any:
    """What a module calls where it lacks a name. Raises AttributeError for one that never was there."""
    for home, names in NAMES[module].items():
        if name in names:
            package = home.partition(".")[0]
            if util.find_spec(package) is None:
                raise ImportError(f"{module}.{name} is in {home} now: install {package.replace('_', '-')}")
            return getattr(import_module(home), name)
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


class _OldPaths:
    """A finder and loader that Python tries after its own."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in MOVED and name not in FOLDERS:
            return None
        return ModuleSpec(name, self, is_package=name in FOLDERS)  # type: ignore[arg-type] # a loader by its methods

    def create_module(self, spec: ModuleSpec) -> None:
        """None: an empty module."""

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ in MOVED:
            sys.modules[module.__name__] = import_module(MOVED[module.__name__])

    def get_code(self, name: str) -> CodeType | None:
        """The code that `python -m name` runs."""
        spec = util.find_spec(MOVED[name])
        loader: Any = spec and spec.loader  # modules have files, so they have code
        return loader.get_code(MOVED[name]) if loader is not None else None


def install() -> None:
    """Make the interpreter find the old paths."""
    sys.meta_path.append(_OldPaths())

"""Listing plugins must stay light: an import of a heavy library is refused, and the culprit is named."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType

from neox_core.errors import PluginError

HEAVY = frozenset({"torch", "deepspeed", "triton", "numpy", "transformers", "tokenizers", "jax", "tensorflow"})


class HeavyImportError(PluginError):
    """A listing module imported a heavy library. Not an ImportError, so `except ImportError` cannot hide it."""


class _Refuse:
    def __init__(self, culprit: str) -> None:
        self.culprit = culprit
        self.refused: HeavyImportError | None = None

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] not in HEAVY:
            return None
        self.refused = HeavyImportError(
            f"{self.culprit} imports {name} while it is being listed",
            hint="import it in the module that Component(target=...) names",
        )
        raise self.refused


@contextmanager
def no_heavy_imports(culprit: str) -> Iterator[None]:
    """Refuse heavy imports inside the block. One that the block catches and forgets is raised at its end.

    A library that this process has already imported (a test, a notebook) is not looked for again, so nothing is
    refused then; `neox_core.testing.assert_light` checks in a fresh process.
    """
    finder = _Refuse(culprit)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
    if finder.refused is not None:
        raise finder.refused

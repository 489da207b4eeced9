"""The tokenizer and data backend of a run, and the datasets that the backend opens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from neox_core.data.records import digest_of, require_as_prepared
from neox_core.data.tokenizer import CheckedTokenizer, load_tokenizer

if TYPE_CHECKING:
    from neox_core.contracts import DataBackend, Tokenizer, TokenSource, TokenStream
    from neox_core.plan.runfile import ComponentRef, DataPlan, RunPlan

FIRST_DOCUMENTS = 1000
"""Number of documents among which a non-empty one is tried."""


def build_tokenizer(plan: RunPlan) -> Tokenizer | None:
    """The tokenizer of the run; None without one. Raises DataError when its files cannot be read."""
    if plan.data.tokenizer is None:
        return None
    return load_tokenizer(plan.data.tokenizer)


class Datasets:
    """The backend of a run and the datasets that it has opened, each once for all splits."""

    def __init__(self, plan: DataPlan) -> None:
        self._reference = plan.backend
        self._opened: dict[str, Any] = {}
        self.backend = build_backend(plan)

    @property
    def streamed(self) -> bool:
        """Whether documents are read in the order of the dataset, by `stream`; otherwise they are read by `source`."""
        return hasattr(self.backend, "stream")

    def source(self, prefix: str) -> TokenSource:
        """The dataset at a prefix, opened once. Raises as `open_source`."""
        if prefix not in self._opened:
            self._opened[prefix] = open_source(self.backend, self._reference, Path(prefix))
        source: TokenSource = self._opened[prefix]
        return source

    def stream(self, prefix: str) -> TokenStream:
        """The stream of documents at a prefix, opened once. Raises DataError for unreadable text."""
        if prefix not in self._opened:
            backend: Any = self.backend  # a StreamingBackend
            self._opened[prefix] = backend.stream(Path(prefix))
        stream: TokenStream = self._opened[prefix]
        return stream


def build_backend(plan: DataPlan) -> DataBackend:
    """The backend of the run, with its tokenizer where it reads text."""
    backend: DataBackend = plan.backend.make()
    if hasattr(backend, "use") and plan.tokenizer is not None:
        tokenizer: Any = CheckedTokenizer(plan.tokenizer, load_tokenizer(plan.tokenizer))
        tokenizer.encode_batch(["neox"])  # tried before the backend uses it
        backend.use(tokenizer, digest_of(plan.tokenizer))
    return backend


def open_source(backend: DataBackend, reference: ComponentRef, prefix: Path) -> TokenSource:
    """Open a dataset. Its files are those that were prepared together, as far as their folder's manifest tells.

    Raises PluginError for a source that breaks its contract, whose values would silently be cast to ids.
    """
    with reference.blamed():
        files = backend.files(prefix)
    if not isinstance(files, tuple) or not all(isinstance(each, Path) for each in files):
        raise reference.fault(f"files() gives {files!r}, not a tuple of paths")
    require_as_prepared(files)
    with reference.blamed():
        source = backend.open(prefix)
        sizes, dtype = source.sizes, np.dtype(source.dtype)
    if not isinstance(sizes, np.ndarray) or sizes.ndim != 1 or sizes.dtype.kind not in "iu":
        raise reference.fault("`sizes` of its dataset is not an array of whole numbers, [documents]")
    if len(sizes) and int(sizes.min()) < 0:
        document = int(sizes.argmin())
        raise reference.fault(f"`sizes` of its dataset gives document {document} {sizes[document]} tokens")
    some = np.flatnonzero(sizes[:FIRST_DOCUMENTS])
    with reference.blamed():
        ids = source.read(int(some[0]), 0, 1) if len(some) else np.empty(0, dtype)
    if isinstance(ids, np.ndarray) and ids.ndim != 1:
        raise reference.fault(f"read() of its dataset gives ids of the shape {list(ids.shape)}, not [length]")
    if dtype.kind not in "iu" or not isinstance(ids, np.ndarray) or ids.dtype.kind not in "iu":
        raise reference.fault("its dataset does not hold ids of an integer type")
    return source

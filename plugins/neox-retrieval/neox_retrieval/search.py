"""The blocks whose vectors have the largest inner products with that of a query: with FAISS, or exactly without it."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from attrs import frozen

from neox_core.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from neox_retrieval.vectors import Vectors

Found = tuple["NDArray[np.float32]", "NDArray[np.int64]"]


class Index(Protocol):
    """What is searched."""

    def search(self, queries: NDArray[np.float32], k: int) -> Found:
        """Of fp32 [queries, size] vectors: (products, numbers of blocks), both [queries, k], the largest first."""


@frozen
class Exact:
    """All inner products, a part of the blocks at a time: memory does not grow with their number."""

    vectors: Vectors

    def search(self, queries: NDArray[np.float32], k: int) -> Found:
        products = np.empty((len(queries), 0), np.float32)
        numbers = np.empty((len(queries), 0), np.int64)
        for first, part in self.vectors.slices():
            own = np.broadcast_to(np.arange(first, first + len(part)), (len(queries), len(part)))
            products = np.concatenate([products, queries @ part.T], axis=1)
            numbers = np.concatenate([numbers, own], axis=1)
            order = np.argsort(-products, axis=1, kind="stable")[:, :k]
            products, numbers = np.take_along_axis(products, order, 1), np.take_along_axis(numbers, order, 1)
        return products, numbers


@frozen
class Faiss:
    """A flat index of FAISS (arXiv:2401.08281), in memory."""

    index: Any

    def search(self, queries: NDArray[np.float32], k: int) -> Found:
        products, numbers = self.index.search(np.ascontiguousarray(queries), k)
        return products, numbers


def build(vectors: Vectors, *, gpu: bool, exact: bool = False) -> Index:
    """An index of FAISS where it is installed, and not asked for `exact`. Raises ConfigError for a GPU without one."""
    if exact or find_spec("faiss") is None:
        if gpu:
            raise ConfigError("faiss-use-gpu: FAISS is not installed, or not used", hint="install a FAISS for GPUs")
        return Exact(vectors)
    import faiss

    made: Any = faiss.IndexFlatIP(vectors.facts.size)
    if gpu:
        found = getattr(faiss, "get_num_gpus", lambda: 0)()
        if not found:
            message = "faiss-use-gpu: the installed FAISS finds no GPU"
            raise ConfigError(message, hint="install a FAISS for GPUs on a machine that has one, or remove the key")
        made = faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, made)
    for _, part in vectors.slices():
        made.add(np.ascontiguousarray(part))
    return Faiss(made)

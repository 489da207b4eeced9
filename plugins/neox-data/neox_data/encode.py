"""Texts to ids, in this process or in several that work ahead of it by a bounded number of batches."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from multiprocessing import active_children, get_context, parent_process
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from attrs import define

from neox_core.data.tokenizer import encode_batch, load_tokenizer
from neox_core.errors import DataError
from neox_core.plan.runfile import ComponentRef

if TYPE_CHECKING:
    from numpy.typing import NDArray


T = TypeVar("T")
_Encoded = Generator[tuple[T, list["NDArray[Any]"]], None, None]
AHEAD = 3
"""Batches for each process that are being worked on, or wait to be written."""


@define
class Encoder:
    """Encodes batches of texts. ftfy: repair text that was decoded wrongly, with the library of that name.

    workers: processes; 1: this one, whose tokenizer may use all cores by itself.
    """

    tokenizer: ComponentRef
    workers: int = 1
    ftfy: bool = False

    def batches(self, batches: Iterable[tuple[T, Sequence[str]]]) -> _Encoded[T]:
        """(label, ids of each text) of each (label, texts), in order. Raises DataError when a process dies.

        To be closed when it is left before its end, or the processes finish what they have begun.
        """
        if self.workers == 1:
            encode = _Work(self.tokenizer, self.ftfy)
            for label, texts in batches:
                yield label, encode(texts)
            return
        reference = json.dumps(self.tokenizer.plain())
        pool = ProcessPoolExecutor(self.workers, get_context("spawn"), initializer=_start)
        others = set(active_children())
        waiting: deque[tuple[T, Future[list[NDArray[Any]]]]] = deque()
        try:
            for label, texts in batches:
                waiting.append((label, pool.submit(_encode, reference, self.ftfy, texts)))
                if len(waiting) >= AHEAD * self.workers:
                    yield _taken(*waiting.popleft())
            while waiting:
                yield _taken(*waiting.popleft())
        except BaseException:  # Ctrl-C as well, and leaving: what they work on is not wanted any more
            for process in set(active_children()) - others:
                process.kill()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


class _Work:
    def __init__(self, tokenizer: ComponentRef, ftfy: bool) -> None:
        self.reference = tokenizer
        self.tokenizer = load_tokenizer(tokenizer)
        self.mend = _mender() if ftfy else None

    def __call__(self, texts: Sequence[str]) -> list[NDArray[Any]]:
        if self.mend is not None:
            texts = [self.mend(text) for text in texts]
        encoded = encode_batch(self.reference, self.tokenizer, texts)
        return [np.asarray(ids, dtype=np.int32) for ids in encoded]


def _start() -> None:
    """In each process of a pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the first process ends the others
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core each
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@cache
def _work_of(reference: str, ftfy: bool) -> _Work:
    return _Work(ComponentRef(**json.loads(reference)), ftfy)


def _encode(reference: str, ftfy: bool, texts: Sequence[str]) -> list[NDArray[Any]]:
    return _work_of(reference, ftfy)(texts)


def _taken(label: T, future: Future[list[NDArray[Any]]]) -> tuple[T, list[NDArray[Any]]]:
    try:
        return label, future.result()
    except BrokenProcessPool as error:
        raise DataError(
            "a process that encodes text died", hint="check whether memory ran out; use fewer --workers"
        ) from error


def _mender() -> Any:
    try:
        from ftfy import fix_text
    except ImportError as error:
        raise DataError("--ftfy needs the library ftfy", hint="pip install ftfy") from error
    return fix_text

"""Texts to ids, in this process or in several that work ahead of it by a bounded number of batches."""

from __future__ import annotations

import json
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from multiprocessing import get_context
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from attrs import define, frozen

from neox_core.data.tokenizer import encode_batch, load_tokenizer
from neox_core.errors import DataError, in_words
from neox_core.plan.runfile import ComponentRef

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from numpy.typing import NDArray


T = TypeVar("T")
_Encoded = Generator[tuple[T, list["Encoded"]], None, None]
AHEAD = 3
"""Batches for each process that are being worked on, or wait to be written."""


@frozen(eq=False)
class Encoded:
    """The ids of a text, int32. sentences: tokens of each; None: it is whole."""

    ids: NDArray[Any]
    sentences: tuple[int, ...] | None = None


@define
class Encoder:
    """Encodes batches of texts. ftfy: repair text that was decoded wrongly, with the library of that name.

    workers: processes; 1: this one, whose tokenizer may use all cores by itself. sentences: the language by whose rules
    a text is split, each sentence being encoded by itself; None: texts stay whole.
    """

    tokenizer: ComponentRef
    workers: int = 1
    ftfy: bool = False
    sentences: str | None = None

    def batches(self, batches: Iterable[tuple[T, Sequence[str]]]) -> _Encoded[T]:
        """(label, what each text became) of each (label, texts), in order. Raises DataError when a process dies.

        To be closed when it is left before its end, or the processes finish what they have begun.
        """
        if self.workers == 1:
            encode = _Work(self.tokenizer, self.ftfy, self.sentences)
            for label, texts in batches:
                yield label, encode(texts)
            return
        others: list[_Other] = []
        waiting: deque[tuple[T, _Other]] = deque()
        try:
            for count, (label, texts) in enumerate(batches):
                if count < self.workers:  # no more than there are batches
                    others.append(_Other(self.tokenizer, self.ftfy, self.sentences))
                other = others[count % self.workers]
                other.send(texts)
                waiting.append((label, other))
                if len(waiting) >= AHEAD * self.workers:
                    done, first = waiting.popleft()
                    yield done, first.receive()
            for done, first in waiting:
                yield done, first.receive()
        finally:  # Ctrl-C as well, and leaving: what they work on is not wanted any more
            for other in others:
                other.end()


class _Other:
    """A process that encodes, and the only pipe to it: the end of one is the end of the other, on both sides.

    A pool's processes share a pipe, of which this process holds both ends: one that is killed while it writes there
    leaves the pool waiting for ever.
    """

    def __init__(self, tokenizer: ComponentRef, ftfy: bool, sentences: str | None) -> None:
        spawn = get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, json.dumps(tokenizer.plain()), ftfy, sentences))
        self._process.start()
        theirs.close()

    def send(self, texts: Sequence[str]) -> None:
        with suppress(OSError):  # it died: `receive` says so, after what it had finished
            self._connection.send(texts)

    def receive(self) -> list[Encoded]:
        """What became of the texts that were sent first of those left. Raises what encoding them raised."""
        try:
            answer: list[Encoded] | Exception = self._connection.recv()
        except (EOFError, OSError) as error:
            raise DataError(
                "a process that encodes text died", hint="check whether memory ran out; use fewer --workers"
            ) from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def end(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.join()


class _Work:
    def __init__(self, tokenizer: ComponentRef, ftfy: bool, sentences: str | None) -> None:
        self.reference = tokenizer
        self.tokenizer = load_tokenizer(tokenizer)
        self.mend = _mender() if ftfy else None
        self.split = None if sentences is None else _splitter(sentences)

    def __call__(self, texts: Sequence[str]) -> list[Encoded]:
        if self.mend is not None:
            texts = [self.mend(text) for text in texts]
        if self.split is None:
            encoded = encode_batch(self.reference, self.tokenizer, texts)
            return [Encoded(ids) for ids in encoded]
        parts = [self.split(text) for text in texts]
        flat = iter(encode_batch(self.reference, self.tokenizer, [each for part in parts for each in part]))
        found = []
        for part in parts:
            ids = [each for _ in part if len(each := next(flat))]
            found.append(Encoded(np.concatenate([np.empty(0, np.int32), *ids]), tuple(map(len, ids))))
        return found


def _splitter(language: str) -> Callable[[str], list[str]]:
    """A text to its sentences. Raises DataError where the library for it is missing."""
    try:
        from sentencex import segment
    except ImportError as error:
        hint = "pip install 'neox-data[sentences]'"
        raise DataError("--split-sentences needs the library sentencex", hint=hint) from error

    def split(text: str) -> list[str]:
        return [found for each in segment(language, text) if (found := each.strip())]

    return split


def _serve(connection: Connection, reference: str, ftfy: bool, sentences: str | None) -> None:
    """Encode what comes, until the other process closes the pipe or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the first process ends the others
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core each
    received: SimpleQueue[Sequence[str]] = SimpleQueue()
    threading.Thread(target=_receive, args=(connection, received), daemon=True).start()
    work: _Work | None = None
    while True:
        texts = received.get()
        answer: list[Encoded] | Exception
        try:
            work = work or _Work(ComponentRef(**json.loads(reference)), ftfy, sentences)
            answer = work(texts)
        except Exception as error:  # noqa: BLE001, for the other process to raise; its traceback cannot be sent
            answer = in_words(error) or RuntimeError("".join(traceback.format_exception(error)))
        connection.send(answer)


def _receive(connection: Connection, received: SimpleQueue[Sequence[str]]) -> None:
    """In a thread of its own, so that neither process waits for the other to read while both write."""
    with suppress(EOFError, OSError):
        while True:
            received.put(connection.recv())
    os._exit(0)


def _mender() -> Any:
    try:
        from ftfy import fix_text
    except ImportError as error:
        raise DataError("--ftfy needs the library ftfy", hint="pip install ftfy") from error
    return fix_text

"""Texts to ids, in this process or in several that work ahead of it by a bounded number of batches."""

from __future__ import annotations

import json
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from attrs import define, frozen

from neox_core.data.tokenizer import encode_batch, load_tokenizer
from neox_core.errors import DataError, in_words
from neox_core.plan.runfile import ComponentRef

if TYPE_CHECKING:
    from numpy.typing import NDArray


T = TypeVar("T")
_Encoded = Generator[tuple[T, list["Encoded"]], None, None]
_Answer = tuple["NDArray[np.int32]", list[int], list[tuple[int, ...] | None]] | Exception
"""Ids of all texts of a batch, tokens of each text, sentences of each; or what was raised."""
QUEUED = 2
"""Batches that a process has at once: it finds the next one there when it has finished one."""
AHEAD, AHEAD_CHARACTERS = 3, 1 << 20
"""For each process, batches that may be unfinished or wait to be written; more of them while they are so small."""


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
        others, labels = _Others(self), deque[T]()
        try:
            for label, texts in batches:
                while not others.have_room():
                    for encoded in others.finished():
                        yield labels.popleft(), encoded
                others.send(texts)
                labels.append(label)
            while labels:
                for encoded in others.finished():
                    yield labels.popleft(), encoded
        finally:  # Ctrl-C as well, and leaving: what they work on is not wanted any more
            others.end()


class _Others:
    """The processes. A batch goes to the one that has the fewest, and what comes back is put in order.

    No process waits for another one: a turn for each would hold all back to the longest batch of every round.
    """

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._others: list[_Other] = []
        self._answers: dict[int, _Answer] = {}  # those that came before their turn
        self._sizes: deque[int] = deque()  # of those that were sent and not taken
        self._taken = 0

    def have_room(self) -> bool:
        """Whether a batch may be sent before another one has finished."""
        workers = self._encoder.workers
        if len(self._sizes) >= AHEAD * workers and sum(self._sizes) >= AHEAD_CHARACTERS * workers:
            return False
        return len(self._others) < workers or min(len(other.waiting) for other in self._others) < QUEUED

    def send(self, texts: Sequence[str]) -> None:
        if len(self._others) < self._encoder.workers:  # no more than there are batches
            self._others.append(_Other(self._encoder))
        least = min(self._others, key=lambda other: len(other.waiting))
        least.send(self._taken + len(self._sizes), texts)
        self._sizes.append(sum(map(len, texts)))

    def finished(self) -> Iterator[list[Encoded]]:
        """Wait for an answer. Then those whose turn it is. Raises what encoding them raised."""
        busy = {other.connection: other for other in self._others if other.waiting}
        for connection in wait(list(busy)):
            self._answers |= busy[cast("Connection", connection)].receive()
        while self._taken in self._answers:
            answer = self._answers.pop(self._taken)
            if isinstance(answer, Exception):
                raise answer
            self._taken += 1
            self._sizes.popleft()
            yield _apart(*answer)

    def end(self) -> None:
        for other in self._others:
            other.end()


class _Other:
    """A process that encodes, and the only pipe to it: the end of one is the end of the other, on both sides.

    A pool's processes share a pipe, of which this process holds both ends: one that is killed while it writes there
    leaves the pool waiting for ever.
    """

    def __init__(self, encoder: Encoder) -> None:
        spawn = get_context("spawn")
        self.connection, theirs = spawn.Pipe()
        self.waiting: deque[int] = deque()
        """Numbers of the batches that were sent and are not answered yet."""
        given = json.dumps(encoder.tokenizer.plain()), encoder.ftfy, encoder.sentences
        self._process = spawn.Process(target=_serve, args=(theirs, *given))
        self._process.start()
        theirs.close()

    def send(self, number: int, texts: Sequence[str]) -> None:
        self.waiting.append(number)
        with suppress(OSError):  # it died: `receive` reports that, after what it had finished
            self.connection.send(texts)

    def receive(self) -> dict[int, _Answer]:
        """By number, what became of the batch that was sent first; of all that are left where the process died."""
        try:
            answer: _Answer = self.connection.recv()
        except (EOFError, OSError):
            hint = "check whether memory ran out; use fewer --workers"
            died = DataError("a process that encodes text died", hint=hint)
            numbers, self.waiting = self.waiting, deque()
            return dict.fromkeys(numbers, died)
        return {self.waiting.popleft(): answer}

    def end(self) -> None:
        self.connection.close()
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
        answer: _Answer
        try:
            work = work or _Work(ComponentRef(**json.loads(reference)), ftfy, sentences)
            answer = _together(work(texts))
        except Exception as error:  # noqa: BLE001, for the other process to raise; its traceback cannot be sent
            answer = in_words(error) or RuntimeError("".join(traceback.format_exception(error)))
        connection.send(answer)


def _together(encoded: Sequence[Encoded]) -> _Answer:
    """One array for all texts, which takes less time to send than many."""
    ids = [each.ids for each in encoded]
    lengths, sentences = list(map(len, ids)), [each.sentences for each in encoded]
    return np.concatenate([np.empty(0, np.int32), *ids]), lengths, sentences


def _apart(ids: NDArray[np.int32], lengths: list[int], sentences: list[tuple[int, ...] | None]) -> list[Encoded]:
    ends = zip(accumulate(lengths), lengths, sentences, strict=True)
    return [Encoded(ids[end - length : end], apart) for end, length, apart in ends]


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

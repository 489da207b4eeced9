"""A tokenizer that a test names by its import path, since processes that encode import it too."""

import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path


class Letters:
    """a is 0, b is 1 ...; 25 ends a document."""

    vocab_size, eod = 26, 25

    def __init__(self, settings) -> None: ...

    def decode(self, ids):
        return "".join("." if token == 25 else chr(97 + token) for token in ids)

    def encode(self, text):
        return self.encode_batch([text])[0]

    def encode_batch(self, texts):
        if "die" in texts:
            os.kill(os.getpid(), signal.SIGKILL)
        if "halt" in texts:
            Connection._send = begin_and_die
        if "held" in texts:
            wait_for(Path(os.environ["RELEASED"]))
        if "release" in texts:
            Path(os.environ["RELEASED"]).touch()
        if "fail" in texts:
            raise KeyError("what letters do not know")
        return [[ord(letter) - 97 for letter in text] for text in texts]


def wait_for(path):
    deadline = time.monotonic() + 30
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path} was not made")
        time.sleep(0.01)


def begin_and_die(connection, data):
    """As memory that runs out in the middle of a long answer."""
    os.write(connection.fileno(), data[:3])
    os.kill(os.getpid(), signal.SIGKILL)


class Halves(Letters):
    def encode_batch(self, texts):
        return [[0.5, 1.5] for _ in texts]

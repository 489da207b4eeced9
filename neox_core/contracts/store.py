"""Where checkpoints lie that are not in a local folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol


class Store(Protocol):
    """`target(place: str, settings) -> Store`: the objects below "bucket/run", for `save: s3://bucket/run`.

    The component's name is the protocol: "s3". A key is a path below the place, such as "step-00000500/manifest.json".
    The host and every rank make one; the target is imported on the host, so it is light, and making it sends nothing.
    No method is collective. Ranks call at the same time, and no two of them write one key.

    What the core makes complete checkpoints of:

    * An object is whole or absent. Whoever reads while `write` replaces an object gets the old or the new one, and a
      process that is killed inside `write` leaves one of the two.
    * What a call has done, every later call sees, in any process: nothing that may be old is kept.

    Errors are OSError. FileNotFoundError: there is no such object. PermissionError: access is refused. The core tries
    again after all others, five times in all; so a call that waits for a server ends in TimeoutError within minutes.
    Their texts hold no secret. Credentials come from the environment or files of the library, never from the place.
    """

    def list(self) -> Iterable[str]:
        """The keys of all objects below the place, in any order; none where there are none yet."""

    def read(self, key: str, first: int, last: int) -> bytes:
        """The bytes [first, last) of an object, fewer where it ends before. Raises FileNotFoundError."""

    def write(self, key: str, file: Path) -> None:
        """Store the content of a local file, in place of an object of that key. Returns when every reader sees it."""

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects. One that is not there is no error."""

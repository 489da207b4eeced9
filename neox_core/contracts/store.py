"""Where checkpoints lie that are not in a local folder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol


class Store(Protocol):
    """`target(place: str, settings) -> Store`: the objects below "bucket/run", for `save: s3://bucket/run`.

    The component's name is the protocol: "s3"; its planner makes `StoredCheckpoints`. A key is a path below the place,
    such as "step-00000500/manifest.json". The target is imported on the host, so it is light, and sends nothing. No
    method is collective. Hosts, ranks and threads make stores of their own, call at once, and never write one key.

    What complete checkpoints are made of:

    * An object is whole or absent. Whoever reads while `write` replaces an object gets the old or the new one, and a
      process that is killed inside `write` leaves one of the two.
    * What a call has done, every later call sees, in any process: nothing that may be old is kept.

    Errors are OSError. FileNotFoundError: there is no such object. PermissionError: access is refused. All other calls
    are repeated, five times in all; so a call that waits for a server ends in TimeoutError within minutes.
    Their texts hold no secret. Credentials come from the environment or files of the library, never from the place.
    """

    def list(self) -> Iterable[str]:
        """The keys of all objects below the place, each once, in any order; none where there are none yet."""

    def read(self, key: str, first: int, last: int) -> bytes:
        """The bytes [first, last) of an object, fewer where it ends before. Raises FileNotFoundError."""

    def write(self, key: str, file: Path) -> None:
        """Store the content of a file, which stays, as the object of that key. Returns when every reader sees it."""

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects. An object that does not exist is not an error."""


class StoredCheckpoints(Protocol):
    """`planner(plan: StorePlan) -> StoredCheckpoints`: the checkpoints at one address, as one process sees them.

    It is the planner of the component of a store, so its module is light. The host and every rank make one each.
    docs/plugins/store.md names a planner that makes them of any `Store`.

    A checkpoint there is complete or absent, whichever process is killed at whatever time. No method is collective.
    Every method raises CheckpointError, for a store that fails and for damaged files.

    * url: the address. folder: a local one, for files on their way.
    * token: tells this run from others that save at the address; "" before `own` or `join`.
    """

    url: str
    folder: Path
    token: str

    def own(self) -> None:
        """Say that this run saves here from now on, and delete what killed uploads have left. One rank calls it."""

    def join(self) -> None:
        """Learn which run saves here. The other ranks call it, after `own`."""

    def find(self) -> Path | None:
        """A local folder with the manifest, run.json and state.json of the checkpoint there; None where there is none.

        Which one it is, and which errors there are, is as for a local folder.
        """

    def fetch(self, folder: Path, file: str, size: int, sha256: str) -> Path:
        """A local copy of a file of the checkpoint that `find` returned, with the content that its manifest names."""

    def upload(self, written: Path, rank: int) -> None:
        """Upload the files of one rank and the note of their contents, and delete them in the folder `written`."""

    def collect(self, written: Path, rank: int) -> None:
        """Copy into `written` the note that a rank, on this host or another, has uploaded."""

    def publish(self, written: Path, keep: int | None) -> None:
        """Make a checkpoint of what all ranks have uploaded, and then delete what it replaces.

        written: has the manifest, and those of its files that no rank has uploaded. keep: how many checkpoints are
        kept, of earlier steps and this one; None: all.
        """

    def shown(self, folder: Path) -> str:
        """The address of a checkpoint that `find` returned."""

    def naming(self) -> AbstractContextManager[None]:
        """Errors about the local folder, inside the block, name the address that its files are of."""

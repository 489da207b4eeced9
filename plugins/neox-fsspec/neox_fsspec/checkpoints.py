"""Checkpoints in a store. A local folder holds what is on its way; a manifest is written after all that it names.

latest                           as in a local folder
.owner                           names the run that saves here: the one that was started last
step-00000500/manifest.json      as in a local folder, written last
step-00000500/rank-00000.weights.safetensors.3f9c2a1b4d5e6f70    a file of the manifest, with the start of its SHA-256

So no upload changes an object that a manifest names, and two runs in one place cannot mix their files. A checkpoint
that was copied there from a local folder, with plain names, can be read too.
"""

import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

from neox_core.checkpoint.manifest import read_manifest
from neox_core.config.stores import split_address
from neox_core.contracts.store import Store
from neox_core.errors import CheckpointError
from neox_core.files import lock, replacing
from neox_core.plan.runfile import StorePlan
from neox_core.plan.stored.saved import (
    DAMAGED,
    LATEST,
    MANIFEST,
    MOST_MANIFEST,
    RUN,
    STATE,
    STEP_FOLDER,
    find_checkpoint,
    latest_name,
    latest_text,
    rank_note,
)
from neox_core.terminal import one_line
from neox_core.untrusted import short

T = TypeVar("T")
OWNER = ".owner"
WAITS_S = (1.0, 2.0, 4.0, 8.0)
"""Seconds before each further attempt of a call that failed."""
_RANGE = 1 << 26
"""Bytes that one call reads of a large object."""
_UNPUBLISHED = re.compile(r"step-\d{8,}/((ranks-\d{5,}/)?[a-z0-9.-]+\.[0-9a-f]{16}|\.[0-9a-f]+\.rank-\d{5,}\.json)")
_UNCHANGED = "this checkpoint is not saved, and those before it are unchanged; `--resume auto` continues from the last"
_LOOK = "check the address, the network, and the credentials in the environment"


class Checkpoints:
    """`contracts.StoredCheckpoints` of any `contracts.Store`: those at one address, as one process sees them."""

    def __init__(self, plan: StorePlan) -> None:
        address = split_address(plan.url)
        self.url = plan.url.rstrip("/")
        self.folder = Path(plan.folder)
        self.token = ""
        self._component = plan.component
        self._store: Store = plan.component.make(address[1] if address else plan.url)

    def own(self) -> None:
        """Say that this run saves here from now on, and delete what killed uploads have left. One rank calls it."""
        self.token = secrets.token_hex(8)
        self._put_text(OWNER, self.token)
        keys = self._keys()
        whole = set(_steps(keys))
        self._delete(key for key in keys if _UNPUBLISHED.fullmatch(key) and key.partition("/")[0] not in whole)

    def join(self) -> None:
        """Learn which run saves here: the other ranks, after `own`."""
        self.token = self._text(OWNER)

    def find(self) -> Path | None:
        """A local folder with the manifest, run.json and state.json of the checkpoint there; None where there is none.

        Which one it is, and which errors there are, is as for a local folder.
        """
        keys = self._keys()
        found = _steps(keys)
        with self.naming(), _local(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            for name in (LATEST, MANIFEST):
                self._copy(name, keys)
            named = latest_name(self.folder)
            wanted = {name for name in (named, *found[:1]) if name in found}
            for name in {path.name for path in self.folder.iterdir() if STEP_FOLDER.fullmatch(path.name)} | wanted:
                self._copy(f"{name}/{MANIFEST}", {f"{each}/{MANIFEST}" for each in wanted})
            folder = find_checkpoint(self.folder)
            if folder is not None:
                seals = read_manifest(folder).files
                for file in (RUN, STATE):
                    seal = seals[file]
                    _replace(folder / file, self.fetch(folder, file, seal.size, seal.sha256).read_bytes())
        return folder

    def fetch(self, folder: Path, file: str, size: int, sha256: str) -> Path:
        """A local copy of a file of the checkpoint that `find` returned, with the content that its manifest names."""
        path, prefix = folder / _stored(file, sha256), "" if folder == self.folder else f"{folder.name}/"
        with _local(folder):
            path.parent.mkdir(exist_ok=True)
        with _local(folder), path.with_name(f".{path.name}.lock").open("wb") as held:
            lock(held.fileno(), wait=True)  # the ranks of a host share the copy
            if not path.is_file():
                with replacing(path) as new:
                    if not self._download(f"{prefix}{_stored(file, sha256)}", new, size, sha256):
                        self._download(f"{prefix}{file}", new, size, sha256, required=True)
        return path

    def upload(self, written: Path, rank: int) -> None:
        """Upload the files of one rank and the note of their contents, and delete them here."""
        name, note = _name(written), rank_note(written, rank)
        for file, (_, sha256) in json.loads(note.read_text(encoding="utf-8"))["files"].items():
            self._put(f"{name}/{_stored(file, sha256)}", written / file)
            (written / file).unlink()
        self._put(f"{name}/.{self.token}{note.name}", note)

    def collect(self, written: Path, rank: int) -> None:
        """Get the note that a rank, on this host or another, has uploaded."""
        note = rank_note(written, rank)
        with _local(written):
            note.parent.mkdir(exist_ok=True)
            note.write_text(self._text(f"{_name(written)}/.{self.token}{note.name}"), encoding="utf-8")

    def publish(self, written: Path, keep: int | None) -> None:
        """Make a checkpoint of what all ranks have uploaded, and then delete what it replaces.

        written: has the manifest, and those of its files that no rank has uploaded. keep: how many checkpoints stay, of
        earlier steps and this one; None: all. Later steps belong to an earlier run in the same place, and stay.
        """
        name, seals = _name(written), read_manifest(written).files
        for file in (each for each in seals if (written / each).is_file()):
            self._put(f"{name}/{_stored(file, seals[file].sha256)}", written / file)
        if self._text(LATEST, missing="").startswith(f"{name}\n"):
            self._put_text(LATEST, f"{name}\n")  # a kill may leave the old or the new manifest
        if self._text(OWNER) != self.token:
            raise CheckpointError(
                f"{self.url}: another run has started to save here",
                hint="stop one of the two, or give each a `save` of its own; this run did not save its checkpoint",
            )
        self._put(f"{name}/{MANIFEST}", written / MANIFEST)
        self._put_text(LATEST, latest_text(written).replace(written.name, name))
        kept = {f"{name}/{_stored(file, seal.sha256)}" for file, seal in seals.items()}
        keys = self._keys() - kept
        self._delete(key for key in keys if key.startswith(f"{name}/") and _UNPUBLISHED.fullmatch(key))
        earlier = [each for each in _steps(keys) if _step(each) < _step(name)]
        for old in earlier[keep - 1 :] if keep else ():
            self._delete([f"{old}/{MANIFEST}"])  # first, so that a kill leaves no incomplete checkpoint
            self._delete(key for key in keys if key.startswith(f"{old}/"))

    def shown(self, folder: Path) -> str:
        """The address of a checkpoint that `find` returned."""
        return str(folder).replace(str(self.folder), self.url)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Errors about the local folder, inside the block, name the address that its files are of."""
        try:
            yield
        except CheckpointError as error:
            said = (text.replace(str(self.folder), self.url) for text in (error.message, error.hint))
            message, hint = said
            raise CheckpointError(message, hint=hint) from error

    def _keys(self) -> set[str]:
        def listed() -> Iterable[object]:
            found = self._store.list()
            return [found.encode()] if isinstance(found, str) else list(found)  # its letters are not keys

        keys = self._try("list", listed, _LOOK)
        if wrong := [each for each in keys if not isinstance(each, str)]:
            raise self._component.fault(f"list() gives {short(repr(wrong[0]))}: its contract says keys, as texts")
        return {str(each) for each in keys}

    def _copy(self, key: str, there: set[str]) -> None:
        """Make the local copy of a small object what the object is, also where there is none."""
        path = self.folder / key
        if key not in there:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(exist_ok=True)
        _replace(path, self._read(key, 0, MOST_MANIFEST + 1))

    def _read(self, key: str, first: int, last: int, *, missing: bool = False) -> bytes:
        data = self._try(f"read {key} of", partial(self._store.read, key, first, last), _LOOK, missing=missing)
        if not isinstance(data, bytes) or len(data) > last - first:
            given = f"{len(data):,} bytes" if isinstance(data, bytes) else f"a {type(data).__name__}"
            raise self._component.fault(f"read() gives {given} for {last - first:,} of {key}: its contract says bytes")
        return data

    def _text(self, key: str, missing: str | None = None) -> str:
        try:
            data = self._read(key, 0, MOST_MANIFEST, missing=True)
        except FileNotFoundError as error:
            if missing is None:
                raise CheckpointError(f"{self.url}/{key}: is missing", hint=_UNCHANGED) from error
            return missing
        return data.decode("utf-8", errors="replace")

    def _download(self, key: str, new: Path, size: int, sha256: str, *, required: bool = False) -> bool:
        """Whether there is the object; it is then in `new`, and is what the manifest names."""
        digest, end = hashlib.sha256(), 0
        with new.open("wb") as out:
            while end < size:
                last = min(size, end + _RANGE)
                try:
                    data = self._read(key, end, last, missing=True)
                except FileNotFoundError as error:
                    if not required:
                        return False
                    raise CheckpointError(f"{self.url}/{key}: is missing", hint=DAMAGED) from error
                if not data:
                    break
                digest.update(data)
                end += out.write(data)
        if (end, digest.hexdigest()) != (size, sha256):
            said = "wrong checksum, the object was changed after it was written"
            raise CheckpointError(f"{self.url}/{key}: {said}", hint=DAMAGED)
        return True

    def _put(self, key: str, file: Path) -> None:
        self._try(f"write {key} to", lambda: self._store.write(key, file), _UNCHANGED)

    def _put_text(self, key: str, text: str) -> None:
        with _local(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            file = self.folder / f".{key.lstrip('.')}.out"
            file.write_text(text, encoding="utf-8")
        self._put(key, file)

    def _delete(self, keys: Iterator[str] | list[str]) -> None:
        doomed = sorted(keys)
        if doomed:
            self._try("delete old files of", lambda: self._store.delete(doomed), _LOOK)

    def _try(self, what: str, call: Callable[[], T], hint: str, *, missing: bool = False) -> T:
        """What a call of the store returns, which is repeated for a while. missing: let FileNotFoundError through."""
        for wait_s in (*WAITS_S, None):
            try:
                return call()
            except OSError as error:
                if missing and isinstance(error, FileNotFoundError):
                    raise
                final = wait_s is None or isinstance(error, FileNotFoundError | PermissionError)
                if final:
                    tries = "" if wait_s is not None else f" ({len(WAITS_S) + 1} attempts)"
                    said = one_line(f"{type(error).__name__}: {error}")
                    raise CheckpointError(f"cannot {what} {self.url}: {said}{tries}", hint=hint) from error
            except Exception:
                with self._component.blamed():
                    raise
            time.sleep(wait_s or 0.0)
        raise AssertionError


def _name(written: Path) -> str:
    """step-00000500 of .step-00000500.3.tmp."""
    return written.name.split(".")[1]


def _stored(file: str, sha256: str) -> str:
    return f"{file}.{sha256[:16]}"


def _step(name: str) -> int:
    return int(name.removeprefix("step-"))


def _steps(keys: set[str]) -> list[str]:
    """The checkpoints among some keys, newest first."""
    heads = (key.removesuffix(f"/{MANIFEST}") for key in keys if key.endswith(f"/{MANIFEST}"))
    return sorted(filter(STEP_FOLDER.fullmatch, heads), key=_step, reverse=True)


def _replace(path: Path, content: bytes) -> None:
    """Other ranks of the host do the same at the same time."""
    if not path.is_file() or path.read_bytes() != content:
        with replacing(path) as new:
            new.write_bytes(content)


@contextmanager
def _local(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"{folder}: cannot be used for files of a store: {error.strerror or error}"
        raise CheckpointError(message, hint="make room, or set --run-dir to a folder on another disk") from error

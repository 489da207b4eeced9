"""Downloads a file: the result is complete and verified, or an error leaves a part that can be continued."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from neox_core.errors import DataError

CHUNK_BYTES = 1 << 18
TIMEOUT_S = 60


def download(url: str, place: Path, num_bytes: int, sha256: str) -> Path:
    """Fetch `url` to `place`, unless it is there; continues an earlier, interrupted download.

    num_bytes, sha256: of the whole file. Raises DataError when the network fails, and for a file that is not the one.
    """
    if place.is_file() and place.stat().st_size == num_bytes and _hash(place) == sha256:
        return place
    partial = place.with_name(f".{place.name}.partial")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        if not partial.exists() or partial.stat().st_size < num_bytes:
            _fetch(url, partial, num_bytes)
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise DataError(f"{url}: cannot be downloaded: {reason}", hint="run the command again to continue") from error
    if partial.stat().st_size < num_bytes:
        got = f"{partial.stat().st_size} of {num_bytes} bytes"
        raise DataError(f"{url}: broke off after {got}", hint="run the command again to continue")
    found = _hash(partial)
    if found != sha256:
        partial.unlink()
        raise DataError(
            f"{url}: is not the expected file: its SHA-256 is {found[:16]}..., not {sha256[:16]}...",
            hint="run the command again; if the error stays, the file at that address has changed",
        )
    partial.replace(place)
    return place


def _fetch(url: str, partial: Path, num_bytes: int) -> None:
    done = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})  # noqa: S310 - see _open
    with _open(request) as answer:
        goes_on = done and answer.status == http.HTTPStatus.PARTIAL_CONTENT
        with partial.open("ab" if goes_on else "wb") as file:
            while chunk := answer.read(CHUNK_BYTES):
                file.write(chunk)
                if file.tell() > num_bytes:  # another file, perhaps without an end
                    return


def _open(request: urllib.request.Request) -> Any:
    if request.type not in {"http", "https"}:
        raise DataError(f"{request.full_url}: is neither http nor https")
    return urllib.request.urlopen(request, timeout=TIMEOUT_S)  # noqa: S310


def _hash(path: Path) -> str:
    known = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            known.update(chunk)
    return known.hexdigest()

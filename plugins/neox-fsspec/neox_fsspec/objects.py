"""Stores of whole objects, through fsspec. Each server replaces an object at once, also where it comes in parts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import fsspec

UNCACHED = {"skip_instance_cache": True, "use_listings_cache": False}
"""A listing that fsspec keeps would miss what other ranks write."""
TIMEOUTS: dict[str, Any] = {
    "config_kwargs": {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 2}}
}
_SECRET = ("SECRET", "TOKEN", "PASSWORD", "KEY", "CREDENTIAL")
"""Parts of the names of variables whose values no message may repeat."""
_FOR_GOOD = ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "TokenRetrievalError")


class Objects:
    """A store of one protocol of fsspec. It connects at the first call, with the library's own credentials."""

    def __init__(self, place: str, settings: None, *, protocol: str, **options: Any) -> None:
        self._place, self._protocol, self._options = place, protocol, {**UNCACHED, **options}
        self._connected: Any = None

    def list(self) -> Iterable[str]:
        with _told():
            prefix = f"{self._files()._strip_protocol(self._place)}/"  # noqa: SLF001 fsspec has no public name for it
            return [path.removeprefix(prefix) for path in self._files().find(self._place) if path.startswith(prefix)]

    def read(self, key: str, first: int, last: int) -> bytes:
        with _told():
            if first >= last:
                return b""
            try:
                data: bytes = self._files().cat_file(f"{self._place}/{key}", start=first, end=last)
            except FileNotFoundError:
                raise
            except OSError:
                found = self._files().info(f"{self._place}/{key}")  # a range after the end is an error of S3
                if found["type"] == "file" and first >= int(found["size"]):
                    return b""
                raise
        return data

    def write(self, key: str, file: Path) -> None:
        with _told():
            self._files().put_file(str(file), f"{self._place}/{key}")

    def delete(self, keys: Sequence[str]) -> None:
        with _told():
            paths = [f"{self._place}/{key}" for key in keys]
            try:
                self._files().rm(paths)
            except FileNotFoundError:
                for path in paths:
                    if self._files().exists(path):
                        self._files().rm_file(path)

    def _files(self) -> Any:
        if self._place.startswith("/"):
            raise FileNotFoundError(f"{self._protocol}://{self._place} names no bucket")
        if self._connected is None:
            self._connected = fsspec.filesystem(self._protocol, **self._options)
        self._connected.invalidate_cache()
        return self._connected


s3 = partial(Objects, protocol="s3", **TIMEOUTS)


@contextmanager
def _told() -> Iterator[None]:
    """Errors of the libraries as OSError, without the values of secret variables."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 each library of fsspec has classes of its own
        raise _as_os_error(error) from None


def _as_os_error(error: Exception) -> OSError:
    text = " ".join(str(error).split()) or type(error).__name__
    for name, value in os.environ.items():
        if len(value) > 5 and any(part in name.upper() for part in _SECRET):
            text = text.replace(value, f"${name}")
    kind = type(error).__name__
    if isinstance(error, PermissionError) or kind in _FOR_GOOD:
        return PermissionError(text)
    if isinstance(error, FileNotFoundError) or kind == "ParamValidationError":
        return FileNotFoundError(text)
    return OSError(text if isinstance(error, OSError) else f"{kind}: {text}")

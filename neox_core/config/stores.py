"""Addresses in `save` and `load`: `s3://bucket/run` names a store, any other path a local folder."""

import re
from collections.abc import Mapping
from typing import Any

from neox_core.contracts.architecture import Named

KEYS = ("save", "load")
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_PLACE = re.compile(r"/?[^/\s?#@]+(/[^/\s?#@]+)*")


def split_address(path: str | None) -> tuple[str, str] | None:
    """(protocol, place) of an address of a store; None for a local path."""
    found = _ADDRESS.fullmatch(path or "")
    return None if found is None else (found[1].lower(), found[2].rstrip("/"))


def named_stores(fields: Mapping[str, Any]) -> list[Named]:
    """The stores that a config names, by their protocol; once each."""
    named = {address[0]: key for key in reversed(KEYS) if (address := split_address(fields.get(key))) is not None}
    return [Named(protocol, key) for protocol, key in named.items()]


def address_fault(place: str) -> tuple[str, str]:
    """What is wrong with a place, and the way out; ("", "") where nothing is. Repeats nothing of it: it may be secret.

    A place that holds credentials would get them into run.json and logs.
    """
    if "@" in place or "?" in place:
        said = "must not hold credentials: a run stores and prints the address"
        return said, "remove what is before @ or after ?, and set them in the environment, such as AWS_ACCESS_KEY_ID"
    if not _PLACE.fullmatch(place) or {"..", "."} & set(place.split("/")):
        return "is not an address of a folder in a store", "write protocol://bucket/folder, such as s3://bucket/run"
    return "", ""

"""`detect_nvlink_pairs`: devices in an order in which neighbours share an NVLink. Light."""

from __future__ import annotations

import re
from collections.abc import Sequence

from neox_core.errors import UsageError

_ROW = re.compile(r"^GPU(\d+)\s+(.*)$")
_LINKS = re.compile(r"NV(\d+)")


def read_topology() -> str:
    """What `nvidia-smi topo -m` prints. Raises UsageError where there is none."""
    import shutil
    import subprocess  # 5 ms that a look at a config need not pay

    program = shutil.which("nvidia-smi")
    if program is None:
        raise UsageError("detect_nvlink_pairs needs nvidia-smi", hint="install it, or set detect_nvlink_pairs: false")
    done = subprocess.run([program, "topo", "-m"], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise UsageError(f"nvidia-smi topo -m: {done.stderr.strip()}", hint="set detect_nvlink_pairs: false")
    return done.stdout


def nvlink_order(topology: str, devices: Sequence[int]) -> tuple[int, ...]:
    """`devices`, linked pairs first: each with the device that it shares most NVLinks with, the lowest of equals.

    topology: the matrix of `nvidia-smi topo -m`, whose NV2 means two links.
    """
    links = _links(topology)
    left, pairs, alone = list(devices), list[int](), list[int]()
    while left:
        first = left.pop(0)
        partner = max(left, key=lambda other: links.get((first, other), 0), default=None)
        if partner is None or not links.get((first, partner)):
            alone.append(first)
            continue
        left.remove(partner)
        pairs += [first, partner]
    return (*pairs, *alone)


def _links(topology: str) -> dict[tuple[int, int], int]:
    """(device, device) -> NVLinks between them."""
    rows = [match.groups() for match in map(_ROW.match, topology.splitlines()) if match]
    columns = [int(device) for device, _ in rows]
    return {
        (int(device), column): int(found[1])
        for device, cells in rows
        for column, cell in zip(columns, cells.split(), strict=False)
        if (found := _LINKS.fullmatch(cell))
    }

"""Ports for the ranks that a test starts."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

BELOW = 32768
"""Where the ports begin that Linux gives to connections: one of those may be taken again at any moment."""


def free_port() -> int:
    """A port at which nothing listens. Raises OSError where there is none."""
    for _ in range(1000):
        port = random.SystemRandom().randrange(10240, BELOW)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    raise OSError("no port is free")

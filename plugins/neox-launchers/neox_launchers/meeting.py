"""Where the agents of several hosts meet: the store of the first one, in which each run has keys of its own."""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType

from torch.distributed import DistError, PrefixStore, Store, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from neox_core.errors import RankError, UsageError
from neox_launchers.agents import some
from neox_launchers.contents import NOT_INSTALLED
from neox_launchers.failure import SECRET, say_to_first

LOOK_S = 0.2
FILE_S = 5.0
"""Between two looks of a host at the folder of the run, which all of them share; the first host looks each second."""
FIRST_FILE_S = 1.0
LOOKS = 5_000
"""Looks a second of all hosts together at the store, of two calls each: more hosts look less often."""
CALL_S = 10.0
"""For one call to a store that answers."""
TELL_S = 10.0
"""Between two reports of the hosts that are missing."""


class StoppedError(Exception):
    """This agent was asked to stop before all hosts had met."""


def read_token(run_dir: Path) -> str:
    """The secret by which the agents of a run know each other. Raises UsageError where it is missing."""
    try:
        return (run_dir / SECRET).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{run_dir / SECRET} is missing", hint="start the hosts with `neox train`") from None


class Meeting(RendezvousHandler):
    """One agent's way to the others. limit_s: for all hosts to arrive.

    stop: set when this agent is asked to end. request: file that asks all agents to. contents: digests of the packages
    of this host, which have to be those of the first one.
    """

    def __init__(
        self,
        hosts: list[str],
        node: int,
        address: str,
        port: int,
        token: str,
        limit_s: float,
        stop: threading.Event,
        request: Path | None = None,
        contents: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.hosts, self.node, self.address, self.port = hosts, node, address, port
        self.token, self.limit_s, self.stop, self.request = token, limit_s, stop, request
        self.contents = dict(contents)
        self.store: Store | None = None
        self.look_s = max(LOOK_S, len(hosts) / LOOKS)
        self._looked = -math.inf

    def next_rendezvous(self) -> RendezvousInfo:
        """The store, when every host has arrived. Raises RankError that names those that have not."""
        end = time.monotonic() + self.limit_s
        store = PrefixStore(self.token, self._open(end))
        self._compare(store)
        store.add(f"beat/{self.node}", 1)
        if self.node == 0:
            self._await_all(store, end)
            store.set("met", "")
            say_to_first("met")
        while not self._check(store, "met"):
            if self._check(store, "asked") or self.stop.wait(self.look_s):
                raise StoppedError
            if time.monotonic() > end + CALL_S:  # the first host gives up before, and names who is missing
                raise RankError(f"{self.hosts[self.node]} waited {self.limit_s:.0f} s for the other hosts")
        self.store = store
        return RendezvousInfo(store, self.node, len(self.hosts), RendezvousStoreInfo(self.address, self.port))

    def _compare(self, store: Store) -> None:
        """Raises RankError that names the packages of which this host has other files than the first one."""
        mine = json.dumps(self.contents, sort_keys=True)
        digest = hashlib.sha256(mine.encode()).hexdigest()
        if self.node == 0:
            store.set("contents/all", mine)
            store.set("contents", digest)
            return
        if store.get("contents").decode() == digest:
            return
        first = json.loads(store.get("contents/all"))
        names = sorted(self.contents.keys() | first.keys())
        unlike = [name for name in names if self.contents.get(name) != first.get(name)]
        lacks = [name for name in unlike if self.contents.get(name) == NOT_INSTALLED]
        said = f"has other files of {', '.join(unlike)} than {self.hosts[0]}, perhaps of the same version"
        said = f"lacks {', '.join(lacks)}, which {self.hosts[0]} has" if lacks else said
        raise RankError(
            f"{self.hosts[self.node]} {said}",
            hint="install the same packages on every host; one that was edited has to be edited on all; for files of "
            "--plugins-dir set XDG_CACHE_HOME to a folder that all hosts share",
        )

    def _await_all(self, store: Store, end: float) -> None:
        """Until the other hosts have arrived. Reports from time to time which have not."""
        others, told = range(1, len(self.hosts)), time.monotonic()
        while others and not store.check([f"beat/{each}" for each in others]):
            now = time.monotonic()
            if min(end, told + TELL_S) < now:
                missing = [each for each in others if not store.check([f"beat/{each}"])]
            if now > end:
                raise RankError(
                    f"{self._names(missing)} of {len(self.hosts)} hosts did not arrive at {self.address}:{self.port} "
                    f"within {self.limit_s:.0f} s",
                    hint="see hosts.log; open this port between the hosts, or raise meet-timeout",
                )
            if now > told + TELL_S:
                told = now
                say_to_first("waiting", f"{self._names(missing)} of {len(self.hosts)} hosts")
            try:
                self._pause(FIRST_FILE_S)
            except StoppedError:
                store.set("asked", "")
                time.sleep(2 * self.look_s)  # for the others to hear it: the store ends with this process
                raise

    def _names(self, nodes: Iterable[int]) -> str:
        return some([self.hosts[each] for each in nodes])

    def _pause(self, file_s: float = FILE_S) -> None:
        if self._is_asked(file_s) or self.stop.wait(LOOK_S):
            raise StoppedError

    def _is_asked(self, file_s: float = 0.0) -> bool:
        """Whether the file asks all hosts to stop, perhaps since one has failed. file_s: since the last look at it."""
        now = time.monotonic()
        if self.request is None or now < self._looked + file_s:
            return False
        self._looked = now
        return self.request.exists()

    def _check(self, store: Store, key: str) -> bool:
        """Whether the first host has said this. Raises StoppedError when it has gone since all are asked to stop."""
        try:
            found: bool = store.check([key])
        except (DistError, RuntimeError) as error:
            if self._is_asked():
                raise StoppedError from None
            reason = str(error).splitlines()[0]
            raise RankError(f"{self.hosts[self.node]} has lost {self.hosts[0]} before all had met: {reason}") from None
        return found

    def _open(self, end: float) -> Store:
        """This run's store, which the first host opens and the others find."""
        mine = json.dumps({"run": hashlib.sha256(self.token.encode()).hexdigest(), "in": str(Path.cwd())})
        call = timedelta(seconds=CALL_S)
        if self.node == 0:
            try:
                store = TCPStore(self.address, self.port, None, True, call, wait_for_workers=False, multi_tenant=True)
                store.set("neox/run", mine)
            except (DistError, RuntimeError) as error:
                raise RankError(
                    f"{self.hosts[0]} cannot be reached by itself at {self.address}:{self.port}: "
                    f"{str(error).splitlines()[0]}",
                    hint="set `master_addr` to an address of the first host, and see whether it finds names soon",
                ) from None
            _ask_no_dns()
            return store
        self._await_port(end)
        place = f"{self.address}:{self.port}"
        hint = "set `master_port` to a port that no other program uses"
        try:
            store = TCPStore(self.address, self.port, None, False, call, wait_for_workers=False)
            first = time.monotonic()
            while not store.check(["neox/run"]) and time.monotonic() < first + CALL_S:  # it has just been opened
                self._pause()
            found = store.check(["neox/run"]) and json.loads(store.get("neox/run"))
        except (DistError, RuntimeError, ValueError) as error:
            raise RankError(f"{place} does not answer as a run does: {str(error).splitlines()[0]}", hint=hint) from None
        if not found or found["run"] != json.loads(mine)["run"]:
            whose = f"another run, started in {found['in']}" if found else "another program"
            raise RankError(f"{place} belongs to {whose}", hint=hint)
        return store

    def _await_port(self, end: float) -> None:
        """Until the first host can be connected to."""
        while True:
            try:
                socket.create_connection((self.address, self.port), CALL_S).close()
                return
            except OSError as error:
                reason = error.strerror or str(error)
            if time.monotonic() > end:
                place = f"{self.address}:{self.port}"
                raise RankError(
                    f"{self.hosts[self.node]} did not reach {place} in {self.limit_s:.0f} s: {reason}",
                    hint=loopback(self.address) or "set `master_addr` to an address of the first host that all reach",
                )
            self._pause()

    def get_backend(self) -> str:
        """The name of this way to meet, for torch's agent."""
        return "neox"

    @property
    def use_agent_store(self) -> bool:
        """True: the ranks use the agent's store, and make none."""
        return True

    def is_closed(self) -> bool:
        """False: whoever runs again may meet again."""
        return False

    def set_closed(self) -> None:
        """Nothing to close: the store ends with its process."""

    def num_nodes_waiting(self) -> int:
        """0: no agent joins ranks that run."""
        return 0

    def get_run_id(self) -> str:
        """The name of the run, for torch's agent: one agent serves one run."""
        return "neox"

    def shutdown(self) -> bool:
        """True: nothing is left open."""
        return True


def _ask_no_dns() -> None:
    """Find names in /etc/hosts only, in this process: its store looks up each address that connects."""
    with suppress(OSError, AttributeError):  # of a C library that is not glibc
        ctypes.CDLL(None)["__nss_configure_lookup"](b"hosts", b"files")


def loopback(address: str) -> str:
    """A hint where the name of the first host means each host itself, as Debian's /etc/hosts has it."""
    try:
        found = socket.gethostbyname(address)
    except OSError:
        return ""
    if not found.startswith("127."):
        return ""
    return f"{address} is {found} here, which every host takes for itself: set `master_addr`, or correct /etc/hosts"

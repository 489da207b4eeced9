"""`neox report --serve`: the page of runs as they are at the time, for browsers of this machine."""

from __future__ import annotations

import signal
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from types import FrameType
from typing import Any

from attrs import define, field

from neox_core.errors import NeoxError, UsageError
from neox_core.terminal import echo
from neox_report.describe import Report, in_text
from neox_report.page import policy, write_page

AGE_S = 1.0
"""For how long the runs that were read are shown before they are read again."""
PATIENCE_S = 10
"""For a request to arrive."""
POLL_S = 0.2
"""Between two looks at whether to end: a signal just before a wait begins does not end the wait."""
AT_ONCE = 16
"""Connections; more are closed at once."""


@define(eq=False)
class Fresh:
    """The content of a report, read at most once in AGE_S seconds, whoever asks."""

    report: Report
    _lock: Any = field(factory=threading.Lock)
    _read_at: float = -1e9
    _content: dict[str, Any] = field(factory=dict)

    def content(self) -> dict[str, Any]:
        """Raises UsageError where a run cannot be read any more."""
        with self._lock:
            if time.monotonic() - self._read_at > AGE_S:
                self._content = self.report.content()
                self._read_at = time.monotonic()
            return self._content


def serve_runs(report: Report, host: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM. Raises UsageError for an address that cannot be listened at."""
    fresh = Fresh(report)
    fresh.content()  # a folder that is not a run is an error now
    server = _Server(fresh, host, port)
    stop = threading.Event()
    before = {each: signal.signal(each, _setting(stop)) for each in (signal.SIGINT, signal.SIGTERM)}
    thread = threading.Thread(target=server.serve_forever, name="neox-report", daemon=True)
    try:
        with server:
            thread.start()
            echo(f"serving at {server.url}; Ctrl-C ends it")
            if not server.local:
                echo("note: whoever reaches this address can read the configs and logs of these runs", err=True)
            while not stop.wait(POLL_S):
                pass
            server.shutdown()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    echo("stopped serving")


def _setting(stop: threading.Event) -> Any:
    def asked(signum: int, frame: FrameType | None) -> None:
        stop.set()

    return asked


class _Server(ThreadingHTTPServer):
    """local: whether only this machine reaches it."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, fresh: Fresh, host: str, port: int) -> None:
        self.fresh = fresh
        self.room = threading.BoundedSemaphore(AT_ONCE)
        try:
            self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            super().__init__((host, port), _Handler)
        except OSError as error:
            hint = "choose another one with --port (0: a free one) or --host"
            raise UsageError(f"{host}:{port}: cannot be served at: {error.strerror or error}", hint=hint) from error
        address, self.bound = self.server_address[0], int(self.server_address[1])
        at = ip_address(str(address).partition("%")[0])
        self.local = at.is_loopback
        self.names = {str(at), host.lower(), *(("localhost",) if at.is_loopback else ())}
        self.everywhere = at.is_unspecified
        if self.everywhere:
            self.names |= {"localhost", socket.gethostname().lower(), socket.getfqdn().lower()}
        shown = f"[{at}]" if at.version == 6 else str(at)
        self.url = f"http://{shown}:{self.bound}/"

    def knows(self, host: str) -> bool:
        """Whether a Host header names this server: a page elsewhere whose name leads here (DNS rebinding) does not."""
        name, _, port = host.rpartition(":") if not host.endswith("]") and ":" in host else (host, "", "80")
        name = name.removeprefix("[").removesuffix("]").lower()
        if port != str(self.bound):
            return False
        if name in self.names:
            return True
        try:
            return self.everywhere and bool(ip_address(name))  # a name that leads here is not a number
        except ValueError:
            return False

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self.room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is nobody's fault."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = PATIENCE_S
    server_version = "neox"
    sys_version = ""

    def do_GET(self) -> None:
        """The page at /, its content at /data.json."""
        if not self.server.knows(self.headers.get("Host", "")):
            self._answer(421, "text/plain", "This server does not have that name.\n")
            return
        path = self.path.partition("?")[0]
        if path not in ("/", "/data.json"):
            self._answer(404, "text/plain", "There is no such page.\n")
            return
        try:
            content = self.server.fresh.content()
        except NeoxError as error:
            self._answer(503, "text/plain", f"{error.message}\n")
            return
        if path == "/":
            self._answer(200, "text/html", write_page(content, live=True))
        else:
            self._answer(200, "application/json", in_text(content))

    def _answer(self, code: int, kind: str, text: str) -> None:
        body = text.encode("utf-8", "replace")
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Content-Security-Policy", f"{policy(live=True)}; frame-ancestors 'none'")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""

"""`neox report --serve` beside a run that writes, and what asks it that should not."""

import http.client
import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from neox_core.interpreter import python

pytestmark = pytest.mark.ranks


@pytest.fixture
def served(make_run: Callable[..., Path]) -> Iterator[tuple[Path, subprocess.Popen[str], int]]:
    """The folder of a run with one log step, the process that serves it, and its port."""
    folder = make_run("run", [{"step": 1, "time": 1e9, "loss": 4.0}])
    words = [*python("neox_core"), "report", str(folder), "--serve", "--port", "0", "--no-attention"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = process.stdout.readline()
    assert said.startswith("serving at http://127.0.0.1:"), said
    yield folder, process, int(said.split(":")[2].split("/")[0])
    process.kill()
    process.communicate()


def ask(port: int, path: str = "/data.json", method: str = "GET", **headers: str) -> tuple[int, str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer.headers


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_it_shows_what_a_run_adds_and_ends_with_ctrl_c(served: tuple[Path, subprocess.Popen[str], int]) -> None:
    folder, process, port = served
    assert json.loads(ask(port)[1])["runs"][0]["series"]["loss"]["value"] == [4.0]
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "time": 1000000001.0, "loss": 3.0}\n')
    time.sleep(1.1)
    assert json.loads(ask(port)[1])["runs"][0]["series"]["loss"]["value"] == [4.0, 3.0]
    code, text, headers = ask(port, "/")
    assert (code, headers["X-Content-Type-Options"]) == (200, "nosniff")
    assert "connect-src 'self'" in headers["Content-Security-Policy"]
    assert text.startswith("<!doctype html>")
    with socket.create_connection(("127.0.0.1", port)):  # one that sends nothing does not keep it
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "stopped serving\n", "")


def test_only_its_own_names_and_pages(served: tuple[Path, subprocess.Popen[str], int]) -> None:
    folder, _, port = served
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1",
        "127.0.0.1:1",
        "",
        f"127.0.0.1.evil.example:{port}",
    ):
        assert ask(port, Host=host)[:2] == (421, "This server does not have that name.\n")
    for host in (f"localhost:{port}", f"LOCALHOST:{port}", f"127.0.0.1:{port}"):
        assert ask(port, Host=host)[0] == 200
    for path in ("/run.json", "/../../etc/passwd", "//etc/passwd", "/%2e%2e/", "*"):
        assert ask(port, path)[0] == 404
    assert ask(port, method="POST")[0] == 501
    (folder / "run.json").unlink()
    time.sleep(1.1)
    assert ask(port)[0] == 503


def test_a_browser_follows_the_run(served: tuple[Path, subprocess.Popen[str], int], browser: Any) -> None:
    folder, process, port = served
    said: list[str] = []
    page = browser.new_page()
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("console", lambda message: said.append(message.text))
    page.goto(f"http://127.0.0.1:{port}/")
    page.wait_for_selector("main[aria-busy=false]")
    page.locator("#config summary").click()
    page.fill("#config input", "seed")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "time": 1000000001.0, "loss": 3.0}\n')
    wait_until(lambda: "2 values" in page.inner_text("[data-figure='Training loss'] figcaption"))
    assert page.input_value("#config input") == "seed"  # what a reader typed stays
    assert page.locator("#config details[open]").count() == 1
    assert said == []
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    wait_until(lambda: page.inner_text("#said").startswith("The server does not answer"))
    page.close()

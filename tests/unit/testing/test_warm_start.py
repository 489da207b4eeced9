"""A fork of a process that has imported torch is to others the process that was asked for."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import warm_start

PROBE = """
import json, os, pathlib, signal, sys
words = pathlib.Path("/proc/self/cmdline").read_text().rstrip("\\0").split("\\0")
seen = {"id": os.getpid(), "words": words, "given": json.loads(sys.argv[1]), "again": os.environ.get("AGAIN")}
print(json.dumps({**seen, "handled": callable(signal.getsignal(signal.SIGTERM)), "known": "colorsys" in sys.modules}))
if "AGAIN" in os.environ:
    sys.exit(7)
import colorsys
from neox_core.cli.process import exec_module
os.environ["AGAIN"] = "yes"
signal.signal(signal.SIGTERM, lambda *_: None)
exec_module("probe", {"word": 2})
"""
STARTER = """
import os, signal, subprocess, sys, threading
signal.signal(signal.SIGTERM, lambda *_: None)
words, codes = [sys.executable, "-P", "-m", "neox_core.cli.process", "none", "0"], []
for _ in range(int(sys.argv[1])):
    before = {int(each) for each in open(f"/proc/self/task/{os.getpid()}/children").read().split()}
    found = []
    def end():
        while not found:
            now = open(f"/proc/self/task/{os.getpid()}/children").read().split()
            found.extend({int(each) for each in now} - before)
        os.kill(found[0], signal.SIGTERM)
    thread = threading.Thread(target=end)
    thread.start()
    process = subprocess.Popen(words, stdin=subprocess.PIPE)
    thread.join()
    codes.append(process.wait(20))
print(codes)
"""
RANK = [sys.executable, "-P", "-m", "neox_core.run.rank"]
READS = [sys.executable, "-P", "-m", "neox_core.cli.process", "probe", "0"]
"""Waits for its standard input, and runs the module `probe`."""


@pytest.fixture(params=["fork", "as ever"])
def started(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "as ever":
        monkeypatch.setattr(subprocess.Popen, "_execute_child", warm_start.START.as_ever)
    else:
        subprocess.run([*RANK], check=False, stderr=subprocess.DEVNULL)  # starts the template
        monkeypatch.setattr(warm_start.START, "as_ever", None)  # any other way to start would fail


def stop(process: subprocess.Popen[Any]) -> None:
    """Until it is: Linux shows no command line of a process that is still in `exec`."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


@pytest.mark.usefixtures("started")
def test_it_is_a_child_with_what_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text("import sys\nsys.exit(f'it is {sys.argv[1]}')\n")
    env = {**os.environ, "MINE": "given", "PYTHONPATH": str(tmp_path)}
    streams: Any = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(READS, cwd=tmp_path, env=env, text=True, **streams) as process:
        stop(process)
        try:
            seen = psutil.Process(process.pid)
            found = seen.ppid(), Path(seen.cwd()), [each for each in seen.cmdline() if each], seen.environ().get("MINE")
        finally:
            process.send_signal(signal.SIGCONT)
        _, said = process.communicate("there")
    assert found == (os.getpid(), tmp_path, READS, "given")
    assert process.returncode == 1
    assert said == "it is there\n"


@pytest.mark.usefixtures("started")
def test_a_signal_ends_it() -> None:
    with subprocess.Popen(READS, start_new_session=True, stdin=subprocess.PIPE) as process:
        stop(process)
        session = os.getsid(process.pid)
        process.kill()
    assert session == process.pid
    assert process.returncode == -signal.SIGKILL


@pytest.mark.usefixtures("started")
def test_a_command_says_the_same_and_reads_what_it_is_given() -> None:
    neox = [str(Path(sys.executable).with_name("neox"))]
    commands = [*neox, "--version"], [sys.executable, "-m", "neox_core", "config", "check", "/none"]
    done = [subprocess.run(each, capture_output=True, text=True, check=False) for each in commands]
    assert [each.returncode for each in done] == [0, 2]
    assert done[0].stdout.startswith("neox, version ")
    assert "/none" in done[1].stderr


@pytest.mark.usefixtures("started")
def test_it_becomes_another_process_with_the_same_id(tmp_path: Path) -> None:
    """As a light command becomes a heavy one: with its environment, and with none of its modules and handlers."""
    (tmp_path / "probe.py").write_text(PROBE)
    words = [sys.executable, "-P", "-m", "neox_core.cli.process", "probe"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen([*words, "0"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        first, second = map(json.loads, process.communicate('{"word": 1}')[0].splitlines())
    assert process.returncode == 7
    assert [each.pop("id") for each in (first, second)] == [process.pid] * 2
    assert first.pop("words") == [*words, "0"]
    assert second.pop("words")[:-1] == words
    assert first == {"given": {"word": 1}, "again": None, "handled": False, "known": False}
    assert second == {"given": {"word": 2}, "again": "yes", "handled": False, "known": False}


@pytest.mark.usefixtures("started")
def test_a_signal_that_comes_at_once_ends_it(tmp_path: Path) -> None:
    """Also where the process that starts it handles that signal itself, as agents do."""
    (tmp_path / "probe.py").write_text(STARTER)
    words = [sys.executable, "-P", "-m", "neox_core.cli.process", "probe", "0"]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(words, env=env, input="40", capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == (f"{[-signal.SIGTERM] * 40}\n", "")


def test_what_a_fork_cannot_be_is_started_as_ever(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "neox_gpt").mkdir()  # another than the one that is installed
    asked = []
    as_ever = warm_start.START.as_ever
    monkeypatch.setattr(warm_start.START, "as_ever", lambda popen, *how: asked.append(how[0]) or as_ever(popen, *how))
    others: list[tuple[list[str], dict[str, Any]]] = [
        ([sys.executable, "-c", ""], {}),
        ([*RANK], {"preexec_fn": lambda: None}),
        ([*RANK], {"env": {**os.environ, "PYTHONHASHSEED": "7"}}),
        ([*RANK], {"env": {**os.environ, "DS_ACCELERATOR": "cuda"}}),
        ([*RANK], {"env": {**os.environ, "PYTHONPATH": str(tmp_path)}}),
    ]
    for words, more in others:
        subprocess.run(words, check=False, stderr=subprocess.DEVNULL, **more)
    assert asked == [words for words, _ in others]

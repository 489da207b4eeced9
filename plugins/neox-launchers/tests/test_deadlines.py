"""The command that starts the agents: how long it may take, and that it ends whatever it does."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from clusters import plan_for
from neox_launchers.agents import some

from neox_core.plan.runfile import write_runfile

pytestmark = pytest.mark.deadline

DEAF = """
import os, signal, subprocess, sys, time
for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(each, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
open("child", "w").write(str(child.pid))
for line in sys.argv[1:]:
    print(line, file=sys.stderr, flush=True)
open("up", "w").close()
time.sleep(100)
"""
LIMITS = {"meet_timeout": 2, "host_timeout": 2, "end_timeout": 2}
TERM_S = 2
LATE_S = 20


def start(folder, *lines, **limits):
    write_runfile(plan_for(folder, "pdsh", **(LIMITS | limits)), folder / "run.json")
    argv = [sys.executable, "-m", "neox_launchers.hosts", "run.json", "logs", sys.executable, "-c", DEAF, *lines]
    return subprocess.Popen(argv, cwd=folder, stderr=subprocess.PIPE, text=True)


def end(process, folder):
    began = time.monotonic()
    _, err = process.communicate(timeout=300)
    assert time.monotonic() - began < 2 + 2 + TERM_S + LATE_S
    assert not is_running(int((folder / "child").read_text()))
    return process.returncode, json.loads((folder / "failure.json").read_text()), err


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def test_a_command_that_ends_by_nothing_is_killed_after_the_first_failure(tmp_path):
    said = ("neox-host here 0", "neox-host here 1", "neox-host met", "pdsh@here: host1: ssh exited with exit code 255")
    code, failure, _ = end(start(tmp_path, *said, meet_timeout=600), tmp_path)
    assert code == 1
    assert failure["message"].startswith("host host1: its agent ended without a report")
    assert failure["hint"].startswith("processes may still run on localhost, host1; ")
    assert failure["rank"] == 2


def test_the_cause_is_told_before_what_followed_from_it(tmp_path):
    of_torch = ("[E1 TCPStore.cpp:328] [c10d]", "", *(f"frame #{each}: <unknown function>" for each in range(12)))
    ended = "pdsh@here: localhost: ssh exited with exit code 2"
    said = ("neox-host here 0", "error: port 1 is taken", *of_torch, "<omitting python frames>", ended)
    code, failure, _ = end(start(tmp_path, *said, meet_timeout=600), tmp_path)
    assert code == 1
    assert re.fullmatch(r"host localhost: port 1 is taken; \S+ did not end within 2 s", failure["message"])


def test_hosts_whose_agents_never_start_are_named(tmp_path):
    code, failure, _ = end(start(tmp_path, "neox-host here 0"), tmp_path)
    assert code == 1
    assert "host1: no agent has started within 2 s" in failure["message"]
    token = tmp_path / ".hosts"
    assert (token.stat().st_mode & 0o777, len(token.read_text())) == (0o600, 32)


def test_of_many_hosts_that_are_awaited_some_are_named():
    assert some(["a", "b"]) == "a, b"
    assert some([f"h{each}" for each in range(8192)]).endswith(", h18, h19 and 8,172 more")


def test_sigterm_ends_a_command_whose_hosts_have_not_met(tmp_path):
    process = start(tmp_path, "neox-host here 0", meet_timeout=600)
    while not (tmp_path / "up").exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    code, failure, _ = end(process, tmp_path)
    assert code == 1
    assert (failure["asked"], failure["exit_code"]) == (True, -signal.SIGTERM)  # of which `neox train` makes 130
    assert (tmp_path / "stop").read_text() == "asked"

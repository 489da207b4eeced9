"""A line of ssh ends no run that goes on without its host, and names the host of one that has ended."""

import io
import json
import sys
from pathlib import Path

import pytest
from neox_launchers.failure import STOP, HostReport, write_report
from neox_launchers.listening import Listener
from neox_launchers.verdict import judge

sys.path.insert(0, str(Path(__file__).parent))

from clusters import plan_for

HOSTS = ("10.0.0.1", "10.0.0.2")
CLOSED = "Connection to 10.0.0.2 closed by remote host.\n"
SILENT = "Timeout, server 10.0.0.2 not responding.\r\n"
NO_WAY = "ssh: connect to host 10.0.0.2 port 22: No route to host\n"
ORTE = ["ORTE was unable to reliably start one or more daemons.\n", *(f"* reason {each}\n" for each in range(20))]
MET = "neox-host met\n"
NOISE = "Warning: Permanently added '10.0.0.2' (ED25519) to the list of known hosts.\n"


def told(tmp_path: Path, *lines: str) -> tuple[Listener, object]:
    plan = plan_for(tmp_path, "openmpi", HOSTS)
    listener = Listener(tmp_path, list(HOSTS), plan.launcher.load()[1], "mpirun")
    listener.read(io.StringIO("".join(lines)), io.StringIO())
    return listener, plan


def verdict(tmp_path: Path, code: int, *lines: str) -> tuple[int, str]:
    listener, plan = told(tmp_path, *lines)
    ended = judge(plan, tmp_path, tmp_path / "logs", code, listener, "")
    file = tmp_path / "failure.json"
    return ended, json.loads(file.read_text())["message"] if file.exists() else ""


@pytest.mark.parametrize("line", [CLOSED, SILENT])
def test_a_connection_that_ends_later_stops_no_run(tmp_path, line):
    listener, _ = told(tmp_path, NOISE, MET, line)
    assert (listener.lost, listener.unreachable) == (None, "10.0.0.2")
    assert not (tmp_path / STOP).exists()
    assert verdict(tmp_path, 0, MET, line) == (0, "")


@pytest.mark.parametrize("line", [CLOSED, NO_WAY])
def test_a_host_that_is_not_reached_at_the_start_stops_the_others(tmp_path, line):
    listener, _ = told(tmp_path, NOISE, line)
    assert listener.lost == "10.0.0.2"
    assert (tmp_path / STOP).exists()
    assert verdict(tmp_path, 1, NOISE, line) == (1, f"host 10.0.0.2: {line.strip()}")


def test_a_program_that_ends_without_a_word_of_the_host_has_lost_that_of_ssh(tmp_path):
    ended, message = verdict(tmp_path, 1, MET, SILENT, *ORTE)
    assert (ended, message) == (1, f"host 10.0.0.2: its agent ended without a report: {SILENT.strip()}")


def test_a_host_that_was_cut_off_is_not_believed_about_the_others(tmp_path):
    write_report(tmp_path, HostReport(1, (), False, {0: 6.0}, ""))
    assert verdict(tmp_path, 1, MET, SILENT) == (1, f"host 10.0.0.2: {SILENT.strip()}")


def test_a_host_that_another_one_misses_is_named_with_the_time(tmp_path):
    write_report(tmp_path, HostReport(0, (), False, {1: 6.0}, ""))
    assert verdict(tmp_path, 1, MET)[1].startswith("host 10.0.0.2: nothing was heard for 6 s")

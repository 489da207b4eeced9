"""A host that is lost: named, and everything ends in time. The other host is a network namespace."""

import re
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from clusters import OtherHost, can_have_hosts, real_ways, sshd, stand_in
from launched import ALL, Run

pytestmark = [
    pytest.mark.deadline,
    pytest.mark.ranks,
    pytest.mark.skipif(not can_have_hosts(), reason="needs root and network namespaces"),
]
LIMIT_S = 3
LATE_S = 20
"""A loaded machine is late."""


@pytest.fixture
def other():
    host = OtherHost()
    yield host
    host.remove()


@pytest.mark.parametrize("fault", ["power", "cable"])
def test_a_silent_host_is_named_and_all_end(tmp_path, monkeypatch, other, fault):
    def hosts(folder):
        if "pdsh" not in dict(real_ways()):
            return {**stand_in(folder), "NS_1": other.name}
        text = ""
        for name, inside in (("first", ()), ("second", ("ip", "netns", "exec", other.name))):
            (folder / name).mkdir()
            host = other.addresses[bool(inside)]
            sshd(folder / name, [host], inside)
            text += (folder / name / "ssh_config").read_text().replace("Host *", f"Host {host}")
        (folder / "ssh_config").write_text(text)
        return {"PDSH_SSH_ARGS_APPEND": f"-F {folder}/ssh_config"}

    limits = {"host_timeout": LIMIT_S, "end_timeout": 4 * LIMIT_S}
    run = Run(tmp_path, monkeypatch, hosts, hosts=other.addresses, **limits)
    try:
        run.wait_for(*ALL)
        time.sleep(1)
        other.power_off() if fault == "power" else other.pull_the_cable()
        began = time.monotonic()
        code, failure = run.end()
        took = time.monotonic() - began
    finally:
        for pids in ("first", "second"):
            run.stop_daemons(pids)
    assert code == 1
    assert re.match(f"host {re.escape(other.addresses[1])}: (nothing was heard|its agent ended)", failure["message"])
    assert took < 5 * LIMIT_S + LATE_S
    assert [(run.folder / f"left{rank}").read_text() for rank in (0, 1)] == ["1", "1"]
    if fault == "cable":  # its ranks end too, though nobody can tell them
        end = time.monotonic() + LIMIT_S + LATE_S
        while not (run.folder / "left2").exists():
            assert time.monotonic() < end
            time.sleep(0.1)

"""A tree of hosts by pdsh: the starting machine logs in to the first host of each part, which logs in to the others.

The hosts are five network namespaces with sshd of their own, in two parts: the first three and the last two.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from attrs import evolve
from neox_author.testing import check_launcher, example_plan, load_only
from neox_launchers.hosts import descendants
from neox_launchers.pdsh import hint_of, parts
from neox_launchers.relay import ssh

sys.path.insert(0, str(Path(__file__).parent))

from clusters import Switch, can_have_hosts, free_ports, plan_for, real_ways
from launched import RANK, Run

from neox_core.errors import ConfigError
from neox_core.plan.runfile import Host, write_runfile

FIRST, SECOND, THIRD, FOURTH, FIFTH = range(5)
"""Hosts; FIRST and FOURTH are relays."""
ALL = tuple(f"here{rank}" for rank in range(6))
LIMITS = {"host_timeout": 6, "end_timeout": 30, "pdsh_tree_from": 5}
LATE_S = 40
"""A loaded machine is late."""
needs_hosts = pytest.mark.skipif(
    not (can_have_hosts() and "pdsh" in dict(real_ways())), reason="needs root, network namespaces, pdsh and sshd"
)
KEEPS_ITS_PIDS = RANK.replace(
    "parent = os.getppid()\n",
    'parent = os.getppid()\n(run_dir / f"pids{me}").write_text(f"{os.getpid()} {parent}")\n',
).replace('me == "2"', 'me == "5"')
"""Ranks of which the last one fails when it is asked to."""


@pytest.fixture
def switch(tmp_path):
    (tmp_path / "switch").mkdir()
    made = Switch(tmp_path / "switch", 5)
    yield made
    made.remove()


def start(tmp_path, monkeypatch, switch, **settings):
    hosts = tuple(switch.hosts)
    return Run(tmp_path, monkeypatch, lambda _: switch.env, "pdsh", hosts, KEEPS_ITS_PIDS, **LIMITS | settings)


def processes(switch):
    """Command lines of what runs on the hosts, but for their sshd."""
    found = {}
    for space in switch.hosts.values():
        pids = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=True)
        for pid in pids.stdout.split():
            words = command_line(int(pid))
            if words and "sshd" not in words[0]:
                found[int(pid)] = words
    return found


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    except OSError:
        return []


def nothing_is_left(switch):
    end = time.monotonic() + LATE_S
    while processes(switch) and time.monotonic() < end:
        time.sleep(0.1)
    return not processes(switch)


def relays(switch):
    """By the host that they run on."""
    relays = [pid for pid, words in processes(switch).items() if "neox_launchers.relay" in words]
    spaces = {Path(f"/run/netns/{space}").stat().st_ino: host for host, space in switch.hosts.items()}
    return {spaces[Path(f"/proc/{pid}/ns/net").stat().st_ino]: pid for pid in relays}


@pytest.mark.ranks
@pytest.mark.deadline
@needs_hosts
def test_ranks_of_all_hosts_are_told_who_they_are_and_stop_in_good_order(tmp_path, monkeypatch, switch):
    given = {"HF_TOKEN": "s1", "LAB_PLACE": 'a,b %n "$HOME"', "LAB_KEY": "s2"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    run = start(tmp_path, monkeypatch, switch, launcher_env=("LAB_*", "HF_TOKEN"))
    run.wait_for(*ALL)
    hosts = [*switch.hosts]
    logins = [words for pid in descendants(run.process.pid) if (words := command_line(pid))[:1] == ["ssh"]]
    assert sorted(word for words in logins for word in words if word in hosts) == [hosts[FIRST], hosts[FOURTH]]
    assert set(relays(switch)) == {hosts[FIRST], hosts[FOURTH]}
    words = [word for each in (*processes(switch).values(), run.process.args) for word in each]
    assert not any("s1" in word or "s2" in word for word in words)
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == (0, {})
    for rank, local in enumerate("010000"):
        rest = ["6", hosts[FIRST], str(run.port), "1", 'it\'s 100% "$HOME"']
        assert (run.folder / f"here{rank}").read_text().splitlines() == [str(rank), local, *rest]
        assert (run.folder / f"left{rank}").read_text() == "1"
    of_a_leaf = json.loads((run.folder / "env5").read_text())
    assert of_a_leaf.items() >= {"HF_TOKEN": "s1", "LAB_PLACE": given["LAB_PLACE"]}.items()
    assert "LAB_KEY" not in of_a_leaf
    assert nothing_is_left(switch), processes(switch)


FAULTS = {
    "relay is killed": (FOURTH, "host HOST: .*HOST: ssh exited with exit code "),
    "agent of a relay is killed": (FOURTH, "host HOST: its agent ended without a report: .*its agent exited with"),
    "sshd of a relay is killed": (FOURTH, "host HOST: .*HOST"),
    "relay loses its power": (FOURTH, "host HOST: (nothing was heard for|its agent ended without a report)"),
    "agent of another host is killed": (FIFTH, "host HOST: its agent ended without a report"),
    "rank of another host fails": (FIFTH, "on host HOST: ended with exit code 7"),
}


@pytest.mark.ranks
@pytest.mark.deadline
@needs_hosts
@pytest.mark.parametrize("fault", FAULTS)
def test_the_right_host_is_named_and_all_end(tmp_path, monkeypatch, switch, fault):
    run = start(tmp_path, monkeypatch, switch)
    node, message = FAULTS[fault]
    host = [*switch.hosts][node]
    run.wait_for(*ALL, "pids4", "pids5")
    time.sleep(1.5)  # the hosts have met
    if fault == "relay is killed":
        os.kill(relays(switch)[host], signal.SIGKILL)
    elif fault.startswith("agent"):
        os.kill(int((run.folder / f"pids{node + 1}").read_text().split()[1]), signal.SIGKILL)
    elif fault.startswith("sshd"):
        switch.kill_daemons(host)
    elif fault.startswith("relay loses"):
        switch.power_off(host)
    else:
        (run.folder / "fail").touch()
    began = time.monotonic()
    code, failure = run.end()
    assert time.monotonic() - began < LIMITS["end_timeout"] + LATE_S
    assert code == 1
    assert re.match(message.replace("HOST", re.escape(host)), failure["message"]), failure
    assert failure["rank"] == node + 1
    assert nothing_is_left(switch), processes(switch)
    survivors = [rank for rank in range(6) if rank not in (FOURTH + 1, FIFTH + 1)]
    assert {(run.folder / f"left{rank}").read_text() for rank in survivors} == {"1"}


@pytest.mark.ranks
@pytest.mark.deadline
@needs_hosts
def test_hosts_end_when_the_machine_that_started_them_is_gone(tmp_path, monkeypatch, switch):
    run = start(tmp_path, monkeypatch, switch)
    run.wait_for(*ALL)
    started = descendants(run.process.pid)
    run.process.kill()
    for pid in started:
        os.kill(pid, signal.SIGKILL)
    assert nothing_is_left(switch), processes(switch)
    assert {(run.folder / f"left{rank}").read_text() for rank in range(6)} == {"1"}


@pytest.mark.ranks
@pytest.mark.deadline
@needs_hosts
def test_sigterm_to_a_relay_reaches_the_ranks_of_its_host_alone(tmp_path, monkeypatch, switch):
    run = start(tmp_path, monkeypatch, switch)
    run.wait_for(*ALL)
    time.sleep(1.5)
    os.kill(relays(switch)[[*switch.hosts][FOURTH]], signal.SIGTERM)
    run.wait_for("left4")  # ranks that train tell all others
    assert not [*run.folder.glob("left[01235]")]
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == (0, {})
    assert {(run.folder / f"left{rank}").read_text() for rank in range(6)} == {"1"}


@pytest.mark.ranks
@pytest.mark.deadline
@needs_hosts
@pytest.mark.parametrize("node", [FIFTH, FOURTH])
def test_a_host_that_cannot_be_reached_is_named_and_who_has_tried(tmp_path, monkeypatch, switch, node):
    host, relay = [*switch.hosts][node], [*switch.hosts][FOURTH]
    switch.kill_daemons(host)  # the connection is refused
    run = start(tmp_path, monkeypatch, switch)
    code, failure = run.end()
    assert code == 1
    assert failure["message"].startswith(f"host {host}: ssh: connect to host {host} port ")
    told = f"{relay} logs in to {host}: ssh has to work between hosts without a password, or set `pdsh-tree-from: 0` "
    assert failure["hint"].startswith(told if node == FIFTH else "see the output of the hosts: ")
    assert nothing_is_left(switch), processes(switch)


@pytest.mark.ranks
@pytest.mark.deadline
@needs_hosts
def test_a_hostfile_tells_relays_the_user_and_the_port(tmp_path, monkeypatch, switch):
    monkeypatch.setenv("USER", "nobody")
    (port,) = free_ports(1)
    for host in switch.hosts:
        switch.kill_daemons(host)
        file = switch.folder / host / "sshd_config"
        file.write_text(re.sub("^Port .*", f"Port {port}", file.read_text()))
        switch.power_on(host)
    file = switch.folder / "ssh_config"
    file.write_text(re.sub(" Port .*\n", "", file.read_text()))
    hosts = [f"root@{host}:{port}" for host in switch.hosts]
    run = Run(tmp_path, monkeypatch, lambda _: switch.env, "pdsh", hosts, KEEPS_ITS_PIDS, **LIMITS)
    run.wait_for(*ALL)
    run.process.send_signal(signal.SIGTERM)
    assert run.end() == (0, {})


def of_hosts(folder, count):
    plan = example_plan(folder, ranks=[1])
    return evolve(plan, cluster=evolve(plan.cluster, hosts=tuple(Host(f"h{each}", 1) for each in range(count))))


def command(plan, **settings):
    return check_launcher(load_only("neox-launchers"), "pdsh", plan, **settings)


@pytest.mark.parametrize(
    ("count", "settings", "relays"),
    [
        (511, {}, 0),
        (512, {}, 23),
        (1024, {}, 32),
        (8192, {}, 91),
        (512, {"pdsh_tree_from": 0}, 0),
        (8192, {"pdsh_tree_from": 0}, 0),
        (4, {"pdsh_tree_from": 4}, 2),
        (3, {"pdsh_tree_from": 4}, 0),
        (2, {"pdsh_tree_from": 1}, 1),
    ],
)
def test_a_tree_begins_where_the_setting_says(tmp_path, count, settings, relays):
    found = command(of_hosts(tmp_path, count), **settings)
    words = found.argv
    targets = ",".join(word for mark, word in pairwise(words) if mark == "-w").split(",")
    notes = [each for each in found.notes if "get a login from here" in each]
    assert ("neox_launchers.relay" in words, len(targets)) == (bool(relays), relays or count)
    assert [each.split(" hosts get")[0] for each in notes] == ([f"{relays} of {count}"] if relays else [])


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 512, 1000, 8192])
def test_parts_are_all_hosts_once_and_no_machine_logs_in_to_many(tmp_path, count):
    plan = of_hosts(tmp_path, count)
    found = parts(plan, plan_for(tmp_path, "pdsh", pdsh_tree_from=2).launcher.load()[1])
    assert [node for part in found for node in part] == [*range(count)]
    most = max(len(found), *(len(part) - 1 for part in found))
    assert (most - 1) ** 2 < count


def test_options_of_pdsh_are_refused_where_relays_would_not_get_them(tmp_path):
    with pytest.raises(ConfigError, match="launcher-args: most hosts are started by the ssh of others") as raised:
        command(of_hosts(tmp_path, 5), pdsh_tree_from=5, launcher_args="-t 5")
    assert "pdsh-tree-from: 0" in str(raised.value.hint)
    assert "-t" in command(of_hosts(tmp_path, 5), launcher_args="-t 5").argv


@pytest.mark.parametrize("args", [None, "-q -l%u %h", "-q"])
def test_a_relay_calls_ssh_as_pdsh_does(tmp_path, monkeypatch, args):
    monkeypatch.setenv("PDSH_SSH_ARGS_APPEND", "-F /a/file -oTCPKeepAlive=no")
    if args is not None:
        monkeypatch.setenv("PDSH_SSH_ARGS", args)
    words = ssh(plan_for(tmp_path, "pdsh", [f"me@h{each}:22" for each in range(5)], **LIMITS), "h3", 3)
    assert words[:5] == ("ssh", "-F", "/a/file", "-oTCPKeepAlive=no", "-oConnectTimeout=10")
    assert {"-oServerAliveInterval=1", "-oServerAliveCountMax=3", "-oLogLevel=INFO"} <= set(words)
    assert " ".join(words).endswith(" -l me -p 22 " + {None: "-2 -a -x h3", "-q": "-q h3"}.get(args, "-q -lme h3"))


def test_who_logs_in_to_a_host_is_known_of_the_hosts_of_a_tree_alone(tmp_path):
    tree, flat = (plan_for(tmp_path, "pdsh", "abcde", pdsh_tree_from=each) for each in (5, 0))
    assert [hint_of(tree, host)[:17] for host in "abcde"] == [
        "",
        "a logs in to b: s",
        "a logs in to c: s",
        "",
        "d logs in to e: s",
    ]
    assert [hint_of(flat, host) for host in "abcde"] == [""] * 5
    assert hint_of(plan_for(tmp_path, "openmpi", "abcde"), "b") == ""


def test_a_relay_without_ssh_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    write_runfile(plan_for(tmp_path, "pdsh", "abcde", **LIMITS), tmp_path / "run.json")
    relay = [sys.executable, "-m", "neox_launchers.relay", "run.json", str(tmp_path), "PATH", "touch", "started", "0"]
    done = subprocess.run(relay, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.returncode, "cannot start ssh: No such file" in done.stderr) == (6, True), done.stderr
    assert not (tmp_path / "started").exists()

"""Where agents meet: who is awaited, whose port it is, and how an agent that waits is stopped."""

import re
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))

from clusters import can_have_hosts, free_ports
from neox_launchers.meeting import Meeting, StoppedError, loopback
from neox_launchers.neighbours import Neighbours

from neox_core.errors import RankError

HOSTS = ["h0", "h1", "h2"]


def meeting(node, port, token="mine", limit_s=30, stop=None, request=None, contents=()):
    return Meeting(HOSTS, node, "127.0.0.1", port, token, limit_s, stop or threading.Event(), request, dict(contents))


class Request:
    """The file that asks all hosts to stop, which counts the looks at it."""

    def __init__(self):
        self.looks, self.there = 0, False

    def exists(self):
        self.looks += 1
        return self.there


@pytest.fixture
def port():
    return free_ports(1)[0]


def test_all_hosts_share_one_store_whichever_comes_first(port):
    with ThreadPoolExecutor(3) as pool:
        found = [pool.submit(meeting(node, port).next_rendezvous) for node in (2, 1, 0)]
        infos = [each.result() for each in found]
    infos[0].store.set("said", "by 2")
    assert [each.store.get("said") for each in infos] == [b"by 2"] * 3
    assert [each.rank for each in infos] == [2, 1, 0]


def test_a_host_with_other_files_of_a_package_is_named(port):
    same, other = {"neox-gpt": "1", "torch": "2"}, {"neox-gpt": "3", "torch": "2", "more": "4"}
    with ThreadPoolExecutor(3) as pool:
        stop = threading.Event()
        others = [pool.submit(meeting(node, port, stop=stop, contents=same).next_rendezvous) for node in (0, 1)]
        with pytest.raises(RankError, match=r"^h2 has other files of more, neox-gpt than h0, perhaps of the same vers"):
            meeting(2, port, contents=other).next_rendezvous()
        stop.set()
        for each in others:
            with pytest.raises(StoppedError):
                each.result()


def test_hosts_that_do_not_arrive_are_named(port, monkeypatch, capfd):
    monkeypatch.setattr("neox_launchers.meeting.TELL_S", 0.3)
    first = meeting(0, port, limit_s=2)
    with ThreadPoolExecutor(2) as pool:
        other = pool.submit(meeting(1, port, limit_s=2).next_rendezvous)
        with pytest.raises(RankError, match=r"^h2 of 3 hosts did not arrive at 127.0.0.1:\d+ within 2 s\n"):
            first.next_rendezvous()
        other.exception()
    assert "neox-host waiting h2 of 3 hosts" in capfd.readouterr().err


def test_a_run_does_not_join_another_one_on_the_port(port):
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(meeting(0, port, "theirs", stop=stop).next_rendezvous)
        where = re.escape(str(Path.cwd()))
        with pytest.raises(RankError, match=rf"127.0.0.1:{port} belongs to another run, started in {where}\n"):
            meeting(1, port).next_rendezvous()
        stop.set()
        assert isinstance(theirs.exception(), StoppedError)


def test_a_program_that_is_no_run_is_told_apart(port):
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", port))
        stranger.listen()

        def close_all():
            while True:
                try:
                    stranger.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=close_all, daemon=True).start()
        with pytest.raises(RankError, match=rf"127.0.0.1:{port} does not answer as a run does: "):
            meeting(1, port, limit_s=1).next_rendezvous()


def test_an_agent_that_waits_for_the_first_host_stops_at_once(port):
    stop = threading.Event()
    threading.Timer(0.5, stop.set).start()
    with pytest.raises(StoppedError):
        meeting(1, port, limit_s=600, stop=stop).next_rendezvous()


def test_the_first_host_alone_looks_at_the_shared_folder_and_tells_the_others(port):
    requests = [Request(), Request()]
    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(meeting(node, port, request=requests[node]).next_rendezvous) for node in (0, 1)]
        time.sleep(3)
        assert 2 <= requests[0].looks <= 4
        assert requests[1].looks <= 1  # while it waited for the port
        requests[0].there = True
        assert [type(each.exception(timeout=5)) for each in found] == [StoppedError] * 2
    assert requests[1].looks <= 1


@pytest.mark.parametrize(("there", "kind"), [(True, StoppedError), (False, RankError)])
def test_a_host_whose_first_host_is_gone_looks_why(port, there, kind, monkeypatch):
    monkeypatch.setattr("neox_launchers.meeting.FILE_S", 60)
    request, found = Request(), meeting(1, port)
    first = subprocess.Popen([sys.executable, "-c", FIRST, str(port)], stdout=subprocess.PIPE)
    first.stdout.readline()
    found.request = request
    with ThreadPoolExecutor(1) as pool:
        error = pool.submit(found.next_rendezvous)
        time.sleep(1)
        request.there = there
        first.kill()
        assert type(error.exception(timeout=60)) is kind
    first.communicate()
    assert there or "h1 has lost h0 before all had met: " in str(error.exception())


FIRST = """
import sys, threading
from neox_launchers.meeting import Meeting
found = Meeting(["h0", "h1", "h2"], 0, "127.0.0.1", int(sys.argv[1]), "mine", 60, threading.Event())
threading.Timer(0.5, print, ("up",), {"flush": True}).start()
found.next_rendezvous()
"""


@pytest.mark.parametrize("over", [False, True])
def test_a_first_host_that_leaves_is_lost_unless_all_ranks_have_ended_well(port, over, monkeypatch, tmp_path):
    monkeypatch.setattr("neox_launchers.neighbours.CLOSING_S", 0.5)
    hosts, ended = ["h0", "h1"], threading.Event()
    code = FIRST.replace('"h1", "h2"', '"h1"').replace("found.next", "threading.Timer(9, print).start(); found.next")
    first = subprocess.Popen([sys.executable, "-c", code, str(port)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    found = Meeting(hosts, 1, "127.0.0.1", port, "mine", 60, threading.Event())
    found.next_rendezvous()
    words = {"failed": lambda: False, "over": lambda: over, "ask": lambda: None, "end": ended.set}
    here = Neighbours(lambda: found.store, 1, hosts, tmp_path, 60, **words)
    here.start()
    time.sleep(1)
    first.kill()
    first.communicate()
    deadline = time.monotonic() + 60
    while not here.broken and time.monotonic() < deadline:
        time.sleep(0.05)
    assert here.broken
    assert ended.wait(2 if over else 20) is not over
    assert set(here.lost) == (set() if over else {0})
    here.finish()


@pytest.mark.skipif(not can_have_hosts(), reason="needs root and network namespaces")
def test_the_store_asks_no_dns_for_the_names_of_those_who_connect(tmp_path):
    (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\n")
    inside = (
        f"ip link set lo up && mount --bind {tmp_path}/resolv.conf /etc/resolv.conf && exec {sys.executable} -c '{DNS}'"
    )
    done = subprocess.run(["unshare", "-n", "-m", "sh", "-c", inside], capture_output=True, text=True, check=False)
    before, after = map(int, done.stdout.split())
    assert after == before, done.stderr


DNS = """
import socket, threading, time
from neox_launchers.meeting import Meeting
asked, server = [], socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))

def answer():  # every question: this name does not exist
    while True:
        question, whose = server.recvfrom(512)
        asked.append(question)
        server.sendto(question[:2] + bytes([129, 131]) + question[4:], whose)

threading.Thread(target=answer, daemon=True).start()
found = Meeting(["h0", "h1"], 0, "127.0.0.1", 29500, "mine", 60, threading.Event())
store = found._open(time.monotonic() + 60)
before = len(asked)
kept = [socket.create_connection(("127.0.0.1", 29500)) for _ in range(20)]
time.sleep(2)
print(before, len(asked))
"""


def test_many_hosts_look_less_often(port):
    found = [
        Meeting([f"h{each}" for each in range(count)], 0, "", port, "", 1, threading.Event()) for count in (9, 8192)
    ]
    assert [round(each.look_s, 1) for each in found] == [0.2, 1.6]


def test_a_first_host_that_nobody_reaches_is_named(port):
    with pytest.raises(RankError, match=rf"^h2 did not reach 127.0.0.1:{port} in 1 s: Connection refused\n") as caught:
        meeting(2, port, limit_s=1).next_rendezvous()
    assert "127.0.0.1 is 127.0.0.1 here, which every host takes for itself" in caught.value.hint
    assert loopback("192.0.2.1") == ""

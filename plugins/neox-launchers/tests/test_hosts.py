"""One agent a host, with real processes: by pdsh, mpirun and srun where these are installed, and by stand-ins."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from neox_launchers.forwarding import PRIVATE

sys.path.insert(0, str(Path(__file__).parent))

from clusters import HOSTS, free_ports, plan_for, real_ways, stand_in, ways
from launched import ALL, RANK, Run

from neox_core.plan.runfile import write_runfile

STALLING = (Path(__file__).parent / "stalling.py").read_text()
SET = {"FI_PROVIDER": "efa", "HF_HOME": "/hub of all", "HF_TOKEN": "s1", "LAB_PLACE": "a,b", "WANDB_PROJECT": "p"}
GOT = SET | {"FI_PROVIDER": "tcp", "MINE": "of a file"}
SECRETS = {"LAB_KEY", "NEOX_LEAK", "WANDB_API_KEY"}
SET |= dict.fromkeys(SECRETS, "s2")


@pytest.mark.parametrize(("launcher", "way"), ways("pdsh", "openmpi", "mvapich"))
def test_ranks_of_all_hosts_are_told_who_they_are_and_stop_in_good_order(tmp_path, monkeypatch, launcher, way):
    for name, value in SET.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "set").write_text("MINE=of a file\nFI_PROVIDER = tcp\n")
    monkeypatch.setenv("DS_ENV_FILE", str(tmp_path / "set"))
    run = Run(tmp_path, monkeypatch, way, launcher, launcher_env=("LAB_*", "HF_TOKEN"))
    assert "s1" not in " ".join(map(str, run.process.args))
    try:
        run.wait_for(*ALL)
        found = json.loads((run.folder / "env2").read_text())
        until = time.monotonic() + 60
        while (run.folder / PRIVATE).exists():
            assert time.monotonic() < until, "the file is left though the hosts have met"
            time.sleep(0.05)
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == (0, {})
    finally:
        run.stop_daemons()
    for rank, local in ((0, "0"), (1, "1"), (2, "0")):
        rest = ["3", HOSTS[0], str(run.port), "1", 'it\'s 100% "$HOME"']
        assert (run.folder / f"here{rank}").read_text().splitlines() == [str(rank), local, *rest]
        assert (run.folder / f"left{rank}").read_text() == "1"
    assert found.items() >= GOT.items()
    assert not SECRETS & set(found)
    assert {log.name for log in (run.folder / "logs").iterdir()} >= {"rank0.log", "rank1.log", "rank2.log"}


@pytest.mark.parametrize(("launcher", "way"), [each for each in real_ways() if each[0] != "slurm"])
def test_a_hostfile_tells_ssh_the_user_and_the_port(tmp_path, monkeypatch, launcher, way):
    (port,) = free_ports(1)
    monkeypatch.setenv("USER", "nobody")
    hosts = [f"root@{host}:{port}" for host in HOSTS]
    run = Run(tmp_path, monkeypatch, partial(way, login=port), launcher, hosts=hosts)
    try:
        run.wait_for(*ALL)
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == (0, {})
    finally:
        run.stop_daemons()
    assert (run.folder / "here2").read_text().splitlines()[3] == HOSTS[0]


@pytest.mark.parametrize(
    ("launcher", "way"),
    [("pdsh", stand_in), *(each for each in ways("openmpi") if each[0] != "pdsh")],
)
def test_a_rank_that_fails_ends_the_ranks_of_all_hosts_and_is_named(tmp_path, monkeypatch, launcher, way):
    to_save = RANK.replace("time.sleep(0.3)", "time.sleep(4)")
    run = Run(tmp_path, monkeypatch, way, launcher, code=to_save)
    try:
        run.wait_for(*ALL)
        (run.folder / "fail").touch()
        code, failure = run.end()
    finally:
        run.stop_daemons()
    assert code == 1
    assert (failure["rank"], failure["exit_code"]) == (2, 7)
    assert all((run.folder / f"left{rank}").read_text() == "1" for rank in (0, 1))


@pytest.mark.parametrize(("launcher", "way"), real_ways())
def test_an_agent_that_is_killed_ends_the_ranks_of_all_hosts_and_is_named(tmp_path, monkeypatch, launcher, way):
    by_its_rank = RANK.replace("time.sleep(0.3)", "time.sleep(4)").replace("sys.exit(7)", "os.kill(os.getppid(), 9)")
    run = Run(tmp_path, monkeypatch, way, launcher, code=by_its_rank, host_timeout=4)
    try:
        run.wait_for(*ALL)
        (run.folder / "fail").touch()
        code, failure = run.end(quiet=launcher != "mpich")  # which says what it thinks of the program
    finally:
        run.stop_daemons()
    assert code == 1
    host = "two" if launcher == "slurm" else HOSTS[1]
    assert failure["message"].startswith(f"host {host}: ")
    assert all((run.folder / f"left{rank}").read_text() == "1" for rank in (0, 1))


def test_a_rank_that_hangs_is_named_whichever_host_notices(tmp_path, monkeypatch):
    monkeypatch.setenv("WAITING", "0 1")
    run = Run(tmp_path, monkeypatch, stand_in, code=STALLING, launcher_env=("WAITING",))
    code, failure = run.end()
    assert (code, failure["rank"]) == (1, 2)
    assert failure["message"].startswith("on host 127.0.0.2: made no progress for ")


def test_a_host_that_cannot_be_reached_is_named_and_the_others_do_not_wait(tmp_path, monkeypatch):
    run = Run(tmp_path, monkeypatch, stand_in, hosts=("127.0.0.1", "worker-9"))
    code, failure = run.end()
    assert code == 1
    assert failure["rank"] == 2
    assert failure["message"].startswith("host worker-9: pdsh@here: worker-9: connect: Connection timed out")
    assert failure["users_mistake"]


@pytest.mark.parametrize(
    ("said", "host", "rank"),
    [
        ("srun: error: Node failure on host1", "host1", 2),
        ("srun: error: host1: task 1: Killed", "host1", 2),
        ("srun: error: host[1-2]: tasks 1-2: Exited with exit code 1", "host[1-2]", 0),
    ],
)
def test_a_host_that_slurm_loses_is_named(tmp_path, said, host, rank):
    write_runfile(plan_for(tmp_path, "slurm"), tmp_path / "run.json")
    srun = "import sys; print(sys.argv[1], 'srun: Job step aborted', sep='\\n', file=sys.stderr); sys.exit(1)"
    argv = [sys.executable, "-m", "neox_launchers.hosts", "run.json", "logs", sys.executable, "-c", srun, said]
    assert subprocess.run(argv, cwd=tmp_path, check=False).returncode == 1
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert (failure["message"], failure["rank"]) == (f"host {host}: {said}", rank)


@pytest.mark.parametrize("place", ["logs/hosts.log", "stop"])
def test_a_folder_in_the_place_of_a_file_is_one_error_and_starts_nothing(tmp_path, place):
    write_runfile(plan_for(tmp_path, "slurm"), tmp_path / "run.json")
    (tmp_path / place).mkdir(parents=True)
    argv = [sys.executable, "-m", "neox_launchers.hosts", "run.json", "logs", "touch", "started"]
    done = subprocess.run(argv, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "")
    failure = json.loads((tmp_path / "failure.json").read_text())
    assert (failure["message"], failure["users_mistake"]) == (f"{place}: Is a directory", True)
    assert not (tmp_path / "started").exists()


def test_a_folder_that_a_host_does_not_see_is_said(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    argv = [sys.executable, "-m", "neox_launchers.elastic", "run.json", "logs", "1"]
    done = subprocess.run(argv, cwd=tmp_path / "elsewhere", capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"does not see {tmp_path}/elsewhere/run.json" in done.stderr


def test_the_ranks_end_when_nobody_is_there_any_more(tmp_path, monkeypatch):
    run = Run(tmp_path, monkeypatch, stand_in)
    run.wait_for(*ALL)
    agents = subprocess.run(["pgrep", "-P", str(run.process.pid)], capture_output=True, text=True, check=True)
    run.process.kill()
    for pid in agents.stdout.split():
        os.kill(int(pid), signal.SIGKILL)  # pdsh, as by a second Ctrl-C: only the ends of the pipes tell the hosts
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and not all((run.folder / f"left{rank}").exists() for rank in range(3)):
        time.sleep(0.05)
    assert all((run.folder / f"left{rank}").read_text() == "1" for rank in range(3))

"""The agent with real processes. The plan's components do not exist: the ranks meet, then fail in a known way."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from neox_author.testing import build, example_plan, load_only

from neox_core.plan.runfile import DIGEST, digest, write_runfile


def launch(folder, plan):
    entry = load_only("neox-launchers").find("launcher", "local")
    run_file = folder / "run.json"
    write_runfile(plan, run_file)
    command = entry.load()(plan, run_file, build(entry))
    env = {**os.environ, **command.env, DIGEST: digest(plan)}
    return subprocess.run(command.argv, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def failed_run(tmp_path_factory):
    """Two ranks, with the planned port taken and a failure of an earlier run lying there."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "failure.json").write_text('{"rank": 9}')
    (folder / "failure.rank9.json").write_text('{"message": "old"}')
    (folder / "logs").mkdir()
    (folder / "logs" / "rank1.log").write_text("before")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = launch(folder, example_plan(folder, ranks=[2], port=taken.getsockname()[1]))
    return folder, done


def test_a_failed_rank_fails_the_launch_and_is_reported(failed_run):
    folder, done = failed_run
    assert done.returncode == 1
    failure = json.loads((folder / "failure.json").read_text())
    assert failure["rank"] in {0, 1}
    assert failure["users_mistake"]
    # the ranks came as far as building: they met over another port than the one that is taken
    assert "nowhere.at_all:Nothing" in failure["message"]
    assert not (folder / "failure.rank9.json").exists()


def test_says_nothing_of_its_own(failed_run):
    _, done = failed_run
    assert done.stdout == ""
    assert done.stderr == ""


def test_each_rank_has_a_log_and_the_one_before_is_kept(failed_run):
    folder, _ = failed_run
    assert (folder / "logs" / "rank1.log.1").read_text() == "before"
    failed = json.loads((folder / "failure.json").read_text())["rank"]
    for rank in (0, 1):
        log = (folder / "logs" / f"rank{rank}.log").read_text()
        # the other one is stopped once the first has failed, often before it has said anything
        assert log.endswith(": No module named 'nowhere'\n  install nowhere 0\n") or (log == "" and rank != failed)


@pytest.fixture
def rank_code(tmp_path, monkeypatch):
    """Puts a text in place of the rank module."""
    package = tmp_path / "neox_core" / "run"
    package.mkdir(parents=True)
    import neox_core

    (tmp_path / "neox_core" / "__init__.py").write_text(f"__path__.append({next(iter(neox_core.__path__))!r})\n")
    (package / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return (package / "rank.py").write_text


def test_a_rank_is_told_who_it_is(tmp_path, rank_code):
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
    rank_code(
        f"import os, sys; sys.stderr.write(' '.join(os.environ[n] for n in {names!r}))"
        "\nos.write(1, f\"of {os.environ['RANK']}\\n\".encode())"  # at once: both ranks have one stdout
    )
    done = launch(tmp_path / "run", example_plan(tmp_path / "run", ranks=[2]))
    assert done.returncode == 0, done.stderr
    rows = [(tmp_path / "run" / "logs" / f"rank{rank}.log").read_text().split() for rank in (0, 1)]
    assert [row[:3] for row in rows] == [["0", "0", "2"], ["1", "1", "2"]]
    assert rows[0][3:] == rows[1][3:]
    assert rows[0][3] == "127.0.0.1"
    assert sorted(done.stdout.split()) == ["0", "1", "of", "of"]
    assert not (tmp_path / "run" / "failure.json").exists()


@pytest.mark.parametrize(
    ("waiting", "ahead", "rank", "why"),
    [
        ("0", "1", 1, ""),  # though it has come further
        ("0 1", "0", 1, ": it waits for other ranks"),
        ("", "0", 1, ""),
    ],
)
def test_ranks_are_ended_when_one_makes_no_progress(tmp_path, rank_code, monkeypatch, waiting, ahead, rank, why):
    rank_code((Path(__file__).parent / "stalling.py").read_text())
    monkeypatch.setenv("WAITING", waiting)
    monkeypatch.setenv("AHEAD", ahead)
    assert launch(tmp_path / "run", example_plan(tmp_path / "run", ranks=[2])).returncode == 1
    failure = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert failure["rank"] == rank
    assert re.fullmatch(r"made no progress for \d+ s after step 7" + why, failure["message"])
    logs = [(tmp_path / "run" / "logs" / f"rank{each}.log").read_text() for each in (0, 1)]
    assert all("most recent call first" in log for log in logs)


def test_ranks_of_a_command_that_was_killed_before_they_began_are_stopped(tmp_path, monkeypatch, rank_code):
    """The launcher takes seconds to start, and finds another parent then."""
    rank_code("import time; time.sleep(300)")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    monkeypatch.setenv("NEOX_SUPERVISOR", str(gone.pid))
    assert launch(tmp_path / "run", example_plan(tmp_path / "run", ranks=[2])).returncode == 1
    assert "SIGTERM" in json.loads((tmp_path / "run" / "failure.json").read_text())["message"]


ONLY = """
import os, sys, time
from pathlib import Path
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
print(*(os.environ[name] for name in names), os.getsid(0) == os.getpid())
print("torch" in Path(f"/proc/{os.getppid()}/maps").read_text())
sys.stderr.write("its last words")
"""


@pytest.mark.usefixtures("started_as_ever")
def test_the_only_rank_is_started_without_torch(tmp_path, rank_code):
    """Its agent would import it for a second, before the rank can begin to."""
    (tmp_path / "run" / "logs").mkdir(parents=True)
    (tmp_path / "run" / "logs" / "rank0.log").write_text("before")
    rank_code(ONLY)
    done = launch(tmp_path / "run", example_plan(tmp_path / "run", ranks=[1]))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["0", "0", "1", "1", "127.0.0.1", "True", "False"]
    assert (tmp_path / "run" / "logs" / "rank0.log").read_text() == "its last words"
    assert (tmp_path / "run" / "logs" / "rank0.log.1").read_text() == "before"


@pytest.mark.parametrize(
    ("end", "code", "message"),
    [
        ("sys.exit(7)", 7, "ended with exit code 7"),
        ("os.kill(os.getpid(), 9)", -9, "was killed by SIGKILL"),
    ],
)
def test_how_the_only_rank_failed(tmp_path, rank_code, end, code, message):
    rank_code(f"import os, sys\n{end}")
    assert launch(tmp_path / "run", example_plan(tmp_path / "run", ranks=[1])).returncode == 1
    failure = json.loads((tmp_path / "run" / "failure.json").read_text())
    assert (failure["rank"], failure["exit_code"], failure["asked"]) == (0, code, False)
    assert failure["message"].startswith(message)


def test_the_only_rank_is_asked_once_to_stop(tmp_path, rank_code):
    """SIGINT and SIGTERM of the agent are one SIGTERM for the rank, which ends well then."""
    rank_code(
        "import signal, time\nasked = []\nsignal.signal(signal.SIGTERM, lambda *_: asked.append(1))"
        "\nprint('here', flush=True)\nwhile not asked: time.sleep(0.05)\ntime.sleep(1)\nprint(len(asked))"
    )
    entry = load_only("neox-launchers").find("launcher", "local")
    run_file = tmp_path / "run" / "run.json"
    plan = example_plan(tmp_path / "run", ranks=[1])
    write_runfile(plan, run_file)
    command = entry.load()(plan, run_file, build(entry))
    agent = subprocess.Popen(command.argv, env={**os.environ, **command.env}, stdout=subprocess.PIPE, text=True)
    assert agent.stdout is not None
    assert agent.stdout.readline() == "here\n"
    for number in (signal.SIGINT, signal.SIGTERM):
        agent.send_signal(number)
        time.sleep(0.2)
    assert agent.communicate(timeout=300)[0] == "1\n"
    assert agent.returncode == 0

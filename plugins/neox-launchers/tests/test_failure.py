"""Which of several failed ranks is the cause."""

import json
import signal

import pytest
from neox_launchers.failure import Exit, clear_failures, write_failure

from neox_core.errors import RankError


def cause(tmp_path, exits, reports=()):
    clear_failures(tmp_path)
    for rank, report in dict(reports).items():
        (tmp_path / f"failure.rank{rank}.json").write_text(json.dumps(report))
    write_failure(tmp_path, [Exit(*one) for one in exits], tmp_path / "logs", killed_after=20)
    return json.loads((tmp_path / "failure.json").read_text())


LOST = {"message": "RuntimeError: Connection closed by peer", "time": 99.0, "lost_peer": True}
ERROR = {"message": "ValueError: 3", "time": 100.0}
HUNG = {"message": "made no progress", "time": 100.0, "stalled": True, "lost_peer": False}
WAITED = {**HUNG, "lost_peer": True, "time": 99.9}
MISTAKE = {"message": "no such file", "hint": "make it", "time": 100.2, "users_mistake": True}


@pytest.mark.parametrize(
    ("exits", "reports", "rank"),
    [
        ([(0, 1, 100), (1, -signal.SIGKILL, 100)], {0: LOST}, 1),  # killed; the other lost its peer
        ([(0, 1, 100), (1, 1, 100)], {0: LOST, 1: ERROR}, 1),  # raised; the other noticed "earlier" by its clock
        ([(0, 1, 100), (1, 1, 100)], {0: {**ERROR, "time": 101.0}, 1: ERROR}, 1),  # both raised: the first
        ([(0, -signal.SIGTERM, 100), (1, 1, 100)], {1: ERROR}, 1),  # stopped by the agent
        ([(0, -signal.SIGKILL, 120), (1, 1, 100)], {1: ERROR}, 1),  # stuck, so killed by the agent 20 s later
        ([(0, 1, 100), (1, -signal.SIGABRT, 100)], {0: LOST}, 1),  # abort without a word
        ([(0, -signal.SIGABRT, 100), (1, 1, 100)], {1: ERROR}, 1),  # gloo aborts when a peer is gone
        ([(0, 1, 100), (1, 7, 100)], {0: LOST}, 1),  # left by os._exit(7)
        ([(0, 1, 100), (1, -signal.SIGBUS, 100)], {0: ERROR}, 1),  # a lost peer in words that nobody knows
        ([(0, -signal.SIGTERM, 100), (1, 7, 100)], {}, 1),  # stopped by the agent, after one that left
        ([(0, -signal.SIGKILL, 100), (1, -signal.SIGKILL, 100)], {0: WAITED, 1: HUNG}, 1),  # ended, since one hung
        ([(0, 1, 100), (1, -signal.SIGKILL, 100)], {0: LOST, 1: WAITED}, 0),
    ],
)
def test_the_rank_that_failed_first_is_named(tmp_path, exits, reports, rank):
    assert cause(tmp_path, exits, reports)["rank"] == rank
    assert cause(tmp_path, exits[::-1], reports)["rank"] == rank


def test_says_how_it_ended(tmp_path):
    assert "SIGSEGV" in cause(tmp_path, [(0, -signal.SIGSEGV, 1)])["message"]
    assert "memory runs out" in cause(tmp_path, [(0, -signal.SIGKILL, 1)])["message"]
    assert "a dataset" in cause(tmp_path, [(0, -signal.SIGBUS, 1)])["message"]
    assert cause(tmp_path, [(0, 7, 1)])["message"] == "ended with exit code 7"
    assert cause(tmp_path, [(3, 1, 1)])["log"].endswith("rank3.log")


def test_a_users_mistake_keeps_its_message_hint_and_code(tmp_path):
    failure = cause(tmp_path, [(0, 4, 1)], {0: MISTAKE})
    assert (failure["message"], failure["hint"], failure["exit_code"]) == ("no such file", "make it", 4)
    assert failure["users_mistake"] is True


def test_a_report_cut_off_by_death_is_no_report(tmp_path):
    (tmp_path / "failure.rank0.json").write_text('{"message": "Val')
    write_failure(tmp_path, [Exit(0, 1, 1.0)], tmp_path, killed_after=20)
    assert json.loads((tmp_path / "failure.json").read_text())["message"] == "ended with exit code 1"


HOUR = 3600.0


@pytest.mark.parametrize("skew", [-5 * HOUR, -20.0, 20.0, 5 * HOUR])
@pytest.mark.parametrize(
    ("of_0", "of_1", "reports", "rank"),
    [
        ((1, 2), (1, 1), {0: ERROR, 1: ERROR}, 1),  # both raised: the host that told first
        ((1, 1), (1, 2), {0: ERROR, 1: ERROR}, 0),
        ((-signal.SIGKILL, 2), (1, 1), {1: LOST}, 0),  # killed, not by its agent, which had begun nothing
        ((-signal.SIGKILL, 1), (-signal.SIGTERM, 2), {}, 0),
        ((1, 2), (-signal.SIGTERM, 1), {0: ERROR}, 0),
    ],
)
def test_clocks_of_hosts_that_differ_blame_nobody(tmp_path, skew, of_0, of_1, reports, rank):
    later = {each: {**report, "time": report["time"] + (skew if each else 0)} for each, report in reports.items()}
    exits = [(0, of_0[0], 100.0, 0, of_0[1]), (1, of_1[0], 100.0 + skew, 1, of_1[1])]
    assert cause(tmp_path, exits, later)["rank"] == rank
    assert cause(tmp_path, exits[::-1], later)["rank"] == rank


def test_a_rank_that_its_agent_killed_because_another_host_failed_is_not_the_cause(tmp_path):
    killed = (0, -signal.SIGKILL, 100.0 + 5 * HOUR, 0, 2, 79.0 + 5 * HOUR)  # 21 s after the agent was told
    assert cause(tmp_path, [killed, (1, 7, 100.0, 1, 1)])["rank"] == 1


@pytest.mark.parametrize(
    "said",
    ["Connection closed by peer", "No route to host", "timed out", "Connection refused", "Network is unreachable"],
)
def test_a_lost_peer_is_never_the_cause(tmp_path, said):
    from neox_core.run.exit import write_failure as of_rank

    of_rank(tmp_path, 0, RuntimeError(f"[gloo/tcp] {said} [10.0.0.1]:2345"))
    write_failure(tmp_path, [Exit(0, 1, 99.0, 0, 1), Exit(1, 7, 100.0, 1, 2)], tmp_path, killed_after=20)
    assert json.loads((tmp_path / "failure.json").read_text())["rank"] == 1


def test_what_no_file_can_hold_is_the_error(tmp_path):
    """As on a full disk, which may be what ended the rank."""
    gone = tmp_path / "gone"
    with pytest.raises(
        RankError, match=rf"^rank 3: ended with exit code 5; {gone}: No such file or directory, so"
    ) as told:
        write_failure(gone, [Exit(3, 5, 1.0)], tmp_path, killed_after=20)
    assert told.value.hint == "make room, then start again with --resume auto"

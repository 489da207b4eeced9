"""Which slots a run takes, what counts as a change, what a failure says is lost, and what `neox elastic` refuses."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from neox_elasticity.command import _read, slots_of
from neox_elasticity.members import Sizes, Team, WholeHosts, change, choose, lost_slots
from neox_elasticity.record import FILE, Record, last_mark, restarts_now
from neox_elasticity.supervise import Elastic

from neox_core.errors import RankError, UsageError

FOUR = tuple(("a", slot) for slot in range(2)) + tuple(("b", slot) for slot in (0, 3))


def test_the_most_slots_that_fit_from_the_first_on() -> None:
    team = choose(FOUR, [1, 3, 8])
    assert team is not None
    assert team.slots == FOUR[:3]
    assert team.include() == "a:0,1@b:0"
    assert choose(FOUR, [5, 8]) is None


def test_more_ranks_wait_for_the_least_time_and_fewer_do_not() -> None:
    three, four = Team(FOUR[:3]), Team(FOUR)
    assert change(three, four, FOUR, ran_s=59.9, least_s=60) == ""
    assert change(three, four, FOUR, ran_s=60.0, least_s=60) == "joined"
    assert change(four, three, FOUR[:3], ran_s=0.0, least_s=60) == "left"
    assert change(four, None, (), ran_s=0.0, least_s=60) == ""  # nothing else to run on: as long as it lasts
    # a slot that no size needs changes nothing
    assert change(three, Team(FOUR[:3]), FOUR, ran_s=99.0, least_s=0) == ""


@pytest.mark.parametrize(
    ("failure", "lost"),
    [
        ({"rank": 2, "exit_code": -9, "message": "was killed by SIGKILL"}, (("b", 0),)),
        ({"rank": 2, "exit_code": 6, "message": "host b: Connection refused"}, (("b", 0), ("b", 3))),
        ({"rank": 2, "exit_code": 1, "message": "ValueError: no"}, ()),
        ({"rank": 0, "exit_code": -15, "message": "was asked to stop before the hosts had met", "asked": True}, ()),
        ({"rank": 0, "exit_code": -15, "message": "was killed by SIGTERM", "asked": False}, (("a", 0),)),
        ({"rank": 0, "exit_code": -9, "message": "was asked, made no progress", "asked": True}, (("a", 0),)),
        ({"rank": 4, "exit_code": -9, "message": "of another run"}, ()),
        ({"rank": True, "exit_code": -9, "message": ""}, ()),
        ({"rank": 0, "exit_code": "-9", "message": ""}, ()),
        ({"rank": 0, "exit_code": -9, "message": None}, ()),
        ({}, ()),
    ],
)
def test_a_killed_rank_loses_its_slot_and_a_failed_host_all_of_its(failure: dict[str, Any], lost: object) -> None:
    assert lost_slots(failure, Team(FOUR)) == lost


def record(step: object, at: float) -> str:
    return json.dumps({"step": step, "time": at, "loss": 1.0}) + "\n"


def test_lost_seconds_end_with_the_first_step_beyond_the_last(tmp_path: Path) -> None:
    metrics, kept = tmp_path / "metrics.jsonl", Record(tmp_path)
    assert kept.lost_s() is None
    metrics.write_text(record(6, 100.0) + record(7, 101.0) + '{"step": 7, "valid_loss": 1}\nnonsense\n{"step": 8, "ti')
    kept.interrupted()
    assert kept.lost_s() is None
    metrics.write_text(record(5, 99.0) + record(6, 110.0) + record(7, 111.0))  # from the checkpoint, again
    kept.interrupted()  # another change in between
    assert kept.lost_s() is None
    metrics.write_text(record(7, 111.0) + record(8, 113.5))
    assert kept.lost_s() == 12.5
    assert kept.lost_s() is None


@pytest.mark.parametrize("text", ["", "[1]\n", record("7", 1.0), '{"step": 7, "time": null, "loss": 1}\n', "\0\xff"])
def test_a_file_of_something_else_has_no_step(text: str, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(text)
    assert last_mark(tmp_path / "metrics.jsonl") is None


ANY_SIZE = Sizes([1, 2, 3, 4])


class Hosts:
    """Slots that are there, or an error."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def __call__(self) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def supervisor(
    tmp_path: Path,
    look: Hosts,
    *codes: int,
    failure: dict[str, Any] | None = None,
    shape: Any = ANY_SIZE,
    most: int | None = None,
) -> Any:
    """One whose runs end with the codes, in turn, each with failure.json where it failed."""
    teams, left = [], list(codes)

    class Played(Elastic):
        def _once(self, team: Team) -> tuple[int, str]:
            teams.append(team.include() if isinstance(shape, WholeHosts) else len(team))
            (tmp_path / "failure.json").write_text(json.dumps(failure or {}))
            return left.pop(0), ""

    return Played([], look, shape, 0.0, Record(tmp_path), most), teams


KILLED = {"rank": 0, "exit_code": -9, "message": "was killed by SIGKILL"}


def test_each_killed_rank_costs_its_slot_until_none_is_left(tmp_path: Path) -> None:
    run, teams = supervisor(tmp_path, Hosts((1, FOUR)), 6, 6, 6, 6, failure=KILLED)
    with pytest.raises(RankError, match="4 slots, of which 4 are lost, and the fewest ranks that fit are 1"):
        run.run()
    assert teams == [4, 3, 2, 1]
    events = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert [(each["host"], each["slot"]) for each in events if each["event"] == "lost"] == list(FOUR)


def test_no_more_restarts_than_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, teams = supervisor(tmp_path, Hosts((1, FOUR)), 6, 6, 6, failure=KILLED, most=2)
    assert run.run() == 6
    assert teams == [4, 3, 2]
    assert "started again 2 times, as max-restarts allows" in capsys.readouterr().err
    events = [json.loads(line) for line in (tmp_path / FILE).read_text().splitlines()]
    assert [each["restarts"] for each in events if each["event"] == "start"] == [0, 1, 2]
    assert restarts_now(tmp_path) == 0  # of a command that has ended


THREE = tuple((host, slot) for host in "abc" for slot in (0, 1))


def test_a_spare_host_takes_the_place_of_one_that_failed_and_the_last_resort_is_one_that_did(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, teams = supervisor(
        tmp_path, Hosts((1, THREE)), 6, 6, 6, 0, failure=KILLED, shape=WholeHosts(2, 2), most=3
    )  # always the first rank: the host at the top of the hostfile that has not failed
    assert run.run() == 0
    assert teams == ["a:0,1@b:0,1", "b:0,1@c:0,1", "a:0,1@c:0,1", "b:0,1@c:0,1"]
    spare = [line for line in capfd.readouterr().err.splitlines() if "spare" in line]
    assert spare == ["neox elastic: max-restarts may replace hosts that fail by the spare c"]


def test_a_host_with_too_few_slots_is_no_spare() -> None:
    listed = (("a", 0), ("a", 1), ("b", 0), ("c", 0), ("c", 1), ("c", 2))
    team = WholeHosts(2, 2).pick(listed, {("a", 0)})
    assert team is not None
    assert team.include() == "a:0,1@c:0,1"
    assert WholeHosts(3, 2).pick(listed, set()) is None


@pytest.mark.parametrize(
    ("failure", "codes", "most", "code"),
    [
        ({"rank": 0, "exit_code": 1, "message": "RuntimeError: ECC", "users_mistake": False}, (6, 0), 1, 0),
        ({"rank": 0, "exit_code": 1, "message": "RuntimeError: ECC", "users_mistake": False}, (6,), None, 6),
        ({"rank": 0, "exit_code": 6, "message": "nan", "users_mistake": True}, (6,), 1, 6),
        ({}, (2,), 1, 2),
    ],
)
def test_a_crash_is_tried_again_where_max_restarts_says_so_and_a_mistake_is_not(
    failure: dict[str, Any], codes: tuple[int, ...], most: int | None, code: int, tmp_path: Path
) -> None:
    run, teams = supervisor(tmp_path, Hosts((1, FOUR)), *codes, failure=failure, most=most)
    assert (run.run(), teams) == (code, [4] * len(codes))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ('{"event": "start", "restarts": 2}\n', 2),
        ('{"event": "start", "restarts": 2}\n{"event": "end"}\n', 0),
        ('{"event": "start", "restarts": "2"}\n', 0),
        ('{"event": "start"}\n', 0),
        ("[]\n", 0),
        ("\0", 0),
        ("", 0),
    ],
)
def test_restarts_are_those_of_the_command_that_runs(text: str, number: int, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    assert restarts_now(tmp_path) == number


def test_a_hostfile_that_is_written_again_brings_slots_back(tmp_path: Path) -> None:
    run, teams = supervisor(tmp_path, Hosts((1, FOUR), (2, FOUR)), 6, 0, failure=KILLED)
    assert run.run() == 0
    assert teams == [4, 4]


def test_a_hostfile_with_faults_counts_only_at_the_start(tmp_path: Path) -> None:
    fault = UsageError("half written")
    run, teams = supervisor(tmp_path, Hosts((1, FOUR), fault), 6, 0, failure=KILLED)
    assert run.run() == 0
    assert teams == [4, 3]
    with pytest.raises(UsageError):
        supervisor(tmp_path, Hosts(fault), 0)[0].run()


def test_a_hostfile_counts_once_it_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neox_elasticity.supervise.SETTLE_S", 0.3)
    half, whole = (2, FOUR[:2]), (3, (*FOUR, ("c", 0)))
    run, _ = supervisor(tmp_path, Hosts((1, FOUR), UsageError("half"), half, half, whole))
    run.shape = Sizes([1, 2, 3, 4, 5])
    team = run._team()
    assert [run._changed(team, 1.0) for _ in range(4)] == [""] * 4
    time.sleep(0.4)
    assert run._changed(team, 1.0) == "joined"


def test_faults_of_a_hostfile_that_stay_are_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("neox_elasticity.supervise.SETTLE_S", 0.2)
    run, _ = supervisor(tmp_path, Hosts((1, FOUR), UsageError("'\x1b[2J' is not a host")))
    team = run._team()
    assert run._changed(team, 1.0) == ""
    assert capsys.readouterr().err == ""  # somebody may be writing it
    time.sleep(0.3)
    assert [run._changed(team, 1.0) for _ in range(2)] == ["", ""]
    said = capsys.readouterr().err
    assert said.count("is not a host") == 1
    assert "\x1b" not in said


@pytest.mark.parametrize("code", [0, 2, 5, 6, 130])
def test_any_other_end_is_the_end(code: int, tmp_path: Path) -> None:
    run, teams = supervisor(tmp_path, Hosts((1, FOUR)), code, failure={"rank": 0, "exit_code": 1, "message": "bug"})
    assert run.run() == code
    assert teams == [4]


CONFIG = """\
num-layers: 1
hidden-size: 8
num-attention-heads: 2
seq-length: 8
max-position-embeddings: 8
padded-vocab-size: 16
train-iters: 4
device: cpu
engine: plain
data-path: none
optimizer: {type: Adam, params: {lr: 1.0e-3}}
elasticity: {enabled: true, max_train_batch_size: 30, micro_batch_sizes: [2, 3]}
"""


def test_without_a_hostfile_the_slots_are_those_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "run.yml").write_text(CONFIG)
    look = slots_of(_read((tmp_path / "run.yml",), ("num_gpus=3",)))
    run, teams = supervisor(tmp_path, look, 0)
    assert (run.run(), teams) == (0, [3])


ALONE = ("elasticity.enabled=false", "max-restarts=1", "train_batch_size=4")


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("elasticity.enabled=false", "train_batch_size=4"), "elasticity.enabled: is required by `neox elastic`"),
        ((), "save: is required by `neox elastic`"),
        (("save=there", "num_gpus=2"), "num_gpus: contradicts `neox elastic`, which chooses among the slots"),
        (("save=there", "include=a"), "include: contradicts `neox elastic`"),
        (("save=there", *ALONE, "include=a"), "include: contradicts max-restarts"),
        (("save=there", *ALONE, "num_nodes=2", "hostfile=two"), "num_nodes: must be -1, or from 1 to 1"),
        (("save=there", *ALONE, "hostfile=unlike"), "num-gpus: is required where the hosts have different"),
        (("save=there", *ALONE, "hostfile=unlike", "num_nodes=1", "num_gpus=1", "master_addr=x"), "master_addr: is"),
        (("save=there", "hostfile=nowhere"), "cannot read the hostfile nowhere: No such file"),
        (("save=there", "hostfile=empty"), "names no host"),
        (("save=there", "elasticity.max_train_batch_size=2"), "micro_batch_sizes: 3 is more than"),
        (
            ("save=there", "hostfile=two", "elasticity.min_gpus=3"),
            "has 2 slots, and the fewest ranks that fit are 3",
        ),
    ],
)
def test_what_cannot_be_elastic_is_refused(sets: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "run.yml").write_text(CONFIG)
    (tmp_path / "empty").touch()
    (tmp_path / "two").write_text("localhost slots=2\n")
    (tmp_path / "unlike").write_text("one slots=2\ntwo slots=1\n")
    words = [word for each in sets for word in ("--set", each)]
    command = [sys.executable, "-m", "neox_core", "elastic", "run.yml", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode in (2, 6)

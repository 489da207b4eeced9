"""Hostfiles and filters. neox-deepspeed tests that DeepSpeed's launcher reads them alike."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from neox_core.config.problem import MisfitError
from neox_core.plan.hosts import Pool, exclude, first, include, name_of, read_hostfile

POOL: Pool = {"worker-0": (0, 1, 2, 3), "worker-1": (0, 1, 2, 3), "worker-2": (0, 1)}


def read(tmp_path: Path, text: str) -> tuple[Pool, list[str]]:
    (tmp_path / "hosts").write_text(text)
    pool, problems = read_hostfile(tmp_path / "hosts")
    return pool, [f"{each.where.replace(str(tmp_path), '')} {each.message}".strip() for each in problems]


def test_hosts_keep_their_order_and_comments_are_left_out(tmp_path: Path) -> None:
    text = "# the pool\n\nworker-9 slots=2   # fast\n  worker-1\tslots=1\n#worker-3 slots=4\n10.0.0.7 slots=3"
    pool, problems = read(tmp_path, text)
    assert list(pool.items()) == [("worker-9", (0, 1)), ("worker-1", (0,)), ("10.0.0.7", (0, 1, 2))]
    assert problems == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a slots=1\na slots=2\n", ["/hosts:2:1 names a a second time"]),
        ("a slots=1\nb\n", ["/hosts:2:1 'b' is not a host"]),
        (
            "a slots=x\n\nb slots=-1\n",
            ["/hosts:1:1 'a slots=x' is not a host", "/hosts:3:1 'b slots=-1' is not a host"],
        ),
        ("a slots=2 b slots=2\n", ["/hosts:1:1 'a slots=2 b slots=2' is not a host"]),
        ("a slots=0\n", ["/hosts:1:1 gives a no slot"]),
        ("a slots=99999999999\n", ["/hosts:1:1 gives a more than 1024 slots"]),
        ("a:0 slots=1\n", ["/hosts:1:1 'a:0 slots=1' is not a host"]),
        ("a:99999 b slots=1\n", ["/hosts:1:1 'a:99999 b slots=1' is not a host"]),
        ("-oProxyCommand=id slots=1\n", ["/hosts:1:1 '-oProxyCommand=id slots=1' is not a host"]),
        ("-l@a slots=1\n", ["/hosts:1:1 '-l@a slots=1' is not a host"]),
        ("me@a slots=1\na:22 slots=2\n", ["/hosts:2:1 names a a second time"]),
        (
            "-x slots=1\n",
            ["/hosts:1:1 '-x slots=1' is not a host"],
        ),  # which pdsh takes for an option, a file, a program
        ("^/etc/hosts slots=1\n", ["/hosts:1:1 '^/etc/hosts slots=1' is not a host"]),
        ("a|b slots=1\n", ["/hosts:1:1 'a|b slots=1' is not a host"]),
        ("h[1-4] slots=1\n", ["/hosts:1:1 'h[1-4] slots=1' is not a host"]),
        ("# nobody\n", ["/hosts names no host"]),
        (f"{'a' * 254} slots=1\n", [f"/hosts:1:1 '{'a' * 254} slots=1' is not a host"]),
    ],
)
def test_every_line_that_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, said: list[str]) -> None:
    assert read(tmp_path, text)[1] == said


def test_a_name_has_at_most_the_253_characters_of_dns(tmp_path: Path) -> None:
    assert read(tmp_path, f"me@{'a' * 253}:22 slots=1\n") == ({f"me@{'a' * 253}:22": (0,)}, [])


def test_each_line_of_a_long_file_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("neox_core.plan.hosts.name_of", lambda host: asked.append(host) or name_of(host))
    pool, problems = read(tmp_path, "".join(f"host-{number} slots=1\n" for number in range(500)))
    assert (len(pool), problems) == (500, [])
    assert len(asked) <= 500


def test_a_login_is_no_part_of_the_name(tmp_path: Path) -> None:
    pool, problems = read(tmp_path, "me@worker-0:2222 slots=2\nme@worker-1:2222 slots=2\n")
    assert not problems
    assert [name_of(host) for host in pool] == ["worker-0", "worker-1"]
    assert include(pool, "worker-1:1") == {"me@worker-1:2222": (1,)}
    assert exclude(pool, "worker-1") == {"me@worker-0:2222": (0, 1)}
    with pytest.raises(MisfitError, match="'worker-2', which is not one of worker-0, worker-1"):
        include(pool, "worker-2")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for name, reason in (("none", "No such file or directory"), (".", "Is a directory"), ("bytes", "is not UTF-8")):
        _, (problem,) = read_hostfile(tmp_path / name)
        assert problem.message == f"cannot read {tmp_path / name}: {reason}"
        assert problem.key == "hostfile"


def test_a_file_that_never_ends_or_never_answers_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as large:
        large.truncate(1 << 40)
    for name in ("pipe", "/dev/zero", "large"):
        pool, (problem,) = read_hostfile(tmp_path / name)
        assert pool == {}
        assert "is not a regular file" in problem.message or "is larger than 4 MiB" in problem.message


@pytest.mark.parametrize(
    ("choose", "text", "left"),
    [
        (include, "worker-0@worker-1:0,2", {"worker-0": (0, 1, 2, 3), "worker-1": (0, 2)}),
        (include, "worker-2:1@worker-0:3,1,1", {"worker-0": (1, 3), "worker-2": (1,)}),
        (exclude, "worker-1:0", {"worker-0": (0, 1, 2, 3), "worker-1": (1, 2, 3), "worker-2": (0, 1)}),
        (exclude, "worker-0@worker-2:0,1", {"worker-1": (0, 1, 2, 3)}),
    ],
)
def test_filters(choose: Callable[[Pool, str], Pool], text: str, left: Pool) -> None:
    assert list(choose(POOL, text).items()) == list(left.items())


@pytest.mark.parametrize(
    ("choose", "text", "said"),
    [
        (include, "worker-7", "names host 'worker-7', which is not one of worker-0, worker-1, worker-2"),
        (include, "worker-0@", "names host '', which is not one of worker-0, worker-1, worker-2"),
        (include, "worker-2:2", "names slot '2' of worker-2, which has slots 0 to 1"),
        (include, "worker-2:", "names slot '' of worker-2, which has slots 0 to 1"),
        (include, "worker-2:0,x", "names slot 'x' of worker-2, which has slots 0 to 1"),
        (include, "worker-0@worker-0:1", "names host worker-0 twice"),
        (exclude, "worker-2:5", "names slot '5' of worker-2, which has slots 0 to 1"),
        (exclude, "worker-0@worker-1@worker-2", "leaves no slot to run on"),
    ],
)
def test_filters_name_what_there_is(choose: Callable[[Pool, str], Pool], text: str, said: str) -> None:
    with pytest.raises(MisfitError) as caught:
        choose(POOL, text)
    assert caught.value.message == said
    assert caught.value.key == choose.__name__


def test_the_first_hosts_and_slots() -> None:
    assert first(POOL, -1, -1) == POOL
    assert first(POOL, 1, -1) == {"worker-0": (0, 1, 2, 3)}
    assert first(POOL, 2, 3) == {"worker-0": (0, 1, 2), "worker-1": (0, 1, 2)}
    assert first(POOL, 3, 2) == {"worker-0": (0, 1), "worker-1": (0, 1), "worker-2": (0, 1)}


@pytest.mark.parametrize(
    ("num_nodes", "num_gpus", "key", "said"),
    [
        (4, -1, "num_nodes", "must be -1, or from 1 to 3, the number of hosts; not 4"),
        (0, -1, "num_nodes", "must be -1, or from 1 to 3, the number of hosts; not 0"),
        (-1, 3, "num_gpus", "worker-2 has 2 slots, not 3"),
    ],
)
def test_no_more_than_there_is(num_nodes: int, num_gpus: int, key: str, said: str) -> None:
    with pytest.raises(MisfitError) as caught:
        first(POOL, num_nodes, num_gpus)
    assert (caught.value.key, caught.value.message) == (key, said)

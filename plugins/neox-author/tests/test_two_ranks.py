"""Ranks that a check forks."""

import faulthandler
import itertools
import time
from pathlib import Path

import pytest
from neox_author.testing import two_ranks

pytest.importorskip("torch")


@pytest.mark.parametrize(("hangs", "tries"), [(1, 2), (9, 2), (0, 1)])
def test_ranks_that_say_nothing_are_tried_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: int, tries: int
) -> None:
    monkeypatch.setattr(two_ranks, "LIMIT_S", 6.0)

    def act(rank: int, group: object) -> int:
        tried = len(list(tmp_path.iterdir()))
        (tmp_path / str(tried)).touch()
        if tried < hangs:
            time.sleep(1000)
        return rank

    if hangs > 1:
        with pytest.raises(
            AssertionError,
            match=r"it answers; a rank did not end in time: it stood in act \(test_two_ranks\.py, \d+\)",
        ):
            two_ranks.on_ranks(1, act, "it answers")
    else:
        assert two_ranks.on_ranks(1, act, "it answers") == [0]
    assert len(list(tmp_path.iterdir())) == tries


def test_ranks_that_compute_get_the_limit_again_until_they_have_computed_so_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(two_ranks, "LIMIT_S", 2.0)
    monkeypatch.setattr(two_ranks, "_computed_s", lambda pid: next(told))
    told = itertools.count(0.5, 0.05)
    assert two_ranks.on_ranks(1, lambda rank, group: time.sleep(5), "it answers") == [None]
    for seconds in ((0.5, 0.51), (2.0,)):
        told = iter(2 * seconds)  # of both tries
        with pytest.raises(AssertionError, match="it answers; a rank did not end in time: it stood in <lambda>"):
            two_ranks.on_ranks(1, lambda rank, group: time.sleep(1000), "it answers")
        assert next(told, None) is None


def test_ranks_are_forked_beside_a_watchdog() -> None:
    """`neox plugins test` has one while it tries a component; a forked rank does not have its thread."""
    faulthandler.dump_traceback_later(3600)
    try:
        assert two_ranks.on_ranks(1, lambda rank, group: rank, "it answers") == [0]
    finally:
        faulthandler.cancel_dump_traceback_later()

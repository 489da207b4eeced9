"""Which ranks hang, by their heartbeat and their stacks."""

import pytest
from neox_launchers.stall import Rank, StallWatch, waits

from neox_core.heartbeat import VARIABLE, Heartbeat, Heartbeats


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """Two ranks, and who watches them."""
    beats = Heartbeats(2)
    monkeypatch.setenv(VARIABLE, beats.path)
    ranks = [Rank(4, 0, 0), Rank(5, 1, 0)]
    watch = StallWatch(lambda: ranks, beats, tmp_path, tmp_path, None, alone=True)
    return watch, [Heartbeat(local_rank) for local_rank in (0, 1)]


def seen(watch, passed):
    return [each.rank for each in watch.look(passed)]


def test_a_rank_is_silent_since_its_last_beat(watched):
    watch, beats = watched
    for each in beats:
        each.expect(3, 3)
        each.beat()
    assert seen(watch, 1) == []
    for _ in range(3):
        beats[0].beat()
        assert seen(watch, 1) == []
    assert seen(watch, 1) == [5]
    beats[1].beat()
    assert seen(watch, 1) == []


def test_each_rank_says_how_long_it_may_take(watched):
    watch, beats = watched
    beats[0].expect(100, 100)
    assert [seen(watch, 50) for _ in range(4)] == [[], [], [], [4]]
    beats[0].expect(0, 0)  # before the training loop, and after it
    assert seen(watch, 1e6) == []


def test_a_rank_that_was_asked_to_stop_has_less_time_from_then_on(watched):
    watch, beats = watched
    beats[0].expect(100, 15)
    beats[1].expect(100, 0)  # which saves
    assert [seen(watch, 50) for _ in range(2)] == [[], []]
    watch.asked = True
    assert [seen(watch, 10) for _ in range(3)] == [[], [], [4]]


def test_a_rank_that_nobody_watches_beats_in_memory_of_its_own(monkeypatch, tmp_path):
    for path in (None, str(tmp_path / "gone"), Heartbeats(1).path):
        if path is None:
            monkeypatch.delenv(VARIABLE, raising=False)
        else:
            monkeypatch.setenv(VARIABLE, path)
        heartbeat = Heartbeat(1)  # the second of one
        assert not heartbeat.watched
        heartbeat.beat()


STACKS = """\
Thread 0x00007f0 (most recent call first):
  File "/neox_core/run/stop.py", line 170 in _watch
  File "/usr/lib/threading.py", line 982 in run

{header} (most recent call first):
  File "{file}", line 3 in {function}
  File "/site-packages/torch/distributed/elsewhere.py", line 9 in outer
"""


@pytest.mark.parametrize("header", ["Current thread 0x00007f1", "Thread 0x00007f1 [python]"])
@pytest.mark.parametrize(
    ("file", "function", "waiting"),
    [
        ("/site-packages/torch/distributed/distributed_c10d.py", "all_reduce", True),
        ("/neox_core/parallel/tensor.py", "forward", True),
        ("/neox_core/parallel/groups.py", "wait_for", True),
        ("/neox_gpt/exchange.py", "_wait", True),
        ("/site-packages/somebody/layer.py", "all_reduce", False),
    ],
)
def test_a_rank_waits_where_a_thread_is_inside_a_collective(header, file, function, waiting):
    assert waits(STACKS.format(header=header, file=file, function=function)) is waiting
    assert not waits("")

import multiprocessing
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from neox_causal_lm.array_cache import HEADER_BYTES, read, stored

KEY = "a" * 64


def arrays():
    return np.arange(7, dtype=np.int32), np.arange(6, dtype=np.int64).reshape(3, 2), np.arange(5, dtype=np.uint8)


def never():
    raise AssertionError("computed again")


def same(one, other):
    return len(one) == len(other) and all(
        np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(one, other, strict=True)
    )


def test_what_is_stored_is_mapped_and_not_computed_again(tmp_path):
    path = tmp_path / "folder" / "index"
    first = stored([path], KEY, arrays)
    assert same(first, arrays())
    assert same(stored([path], KEY, never), arrays())
    assert [file.name for file in path.parent.iterdir()] == ["index"]
    assert all(isinstance(array.base.base, np.memmap) or isinstance(array.base, np.memmap) for array in first)
    with pytest.raises(ValueError, match="read-only"):
        first[0][0] = 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:-1],
        lambda raw: raw[:100],
        lambda raw: b"",
        lambda raw: raw + b"x",
        lambda raw: b"{}".ljust(HEADER_BYTES) + raw[HEADER_BYTES:],
        lambda raw: raw.replace(b'"int32"', b'"int99"'),
        lambda raw: raw.replace(KEY.encode(), b"b" * 64),
        lambda raw: b"\x80\x04\x95" + raw[3:],
    ],
)
def test_what_is_damaged_or_of_other_inputs_is_made_again(tmp_path, damage):
    path = tmp_path / "index"
    stored([path], KEY, arrays)
    path.write_bytes(damage(path.read_bytes()))
    assert read(path, KEY) is None
    assert same(stored([path], KEY, arrays), arrays())
    assert same(read(path, KEY), arrays())


def test_where_the_first_place_cannot_be_written_the_second_is_used(tmp_path):
    (tmp_path / "file").write_text("no folder")
    places = [tmp_path / "file" / "index", tmp_path / "run" / "index"]
    stored(places, KEY, arrays)
    assert same(stored(places, KEY, never), arrays())
    assert same(stored(places[:1], KEY, arrays), arrays()), "and with no place at all they stay in memory"


def make_slowly(path, log):
    def compute():
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return tuple(np.tile(array, 3000) if array.ndim == 1 else array for array in arrays())

    made = stored([path], KEY, compute)
    if len(made[0]) != 21000 or made[0][:7].tolist() != list(range(7)):
        sys.exit(1)


def six_make_it_at_once(folder):
    fork = multiprocessing.get_context("fork")
    many = [fork.Process(target=make_slowly, args=(folder / "index", folder / "log")) for _ in range(6)]
    for process in many:
        process.start()
    for process in many:
        process.join()
    assert [process.exitcode for process in many] == [0] * 6


def test_processes_at_once_make_it_once(tmp_path):
    six_make_it_at_once(tmp_path)
    assert len((tmp_path / "log").read_text().split()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index", "log"]


def test_without_locks_each_may_make_it_and_all_are_right(tmp_path, monkeypatch):
    def no_locks(file, how):
        raise OSError("no locks on this filesystem")

    monkeypatch.setattr("neox_core.files.fcntl.flock", no_locks)
    six_make_it_at_once(tmp_path)
    assert len(read(tmp_path / "index", KEY)[0]) == 21000


def test_a_kill_while_writing_leaves_nothing_that_is_used(tmp_path):
    code = """
import os, signal, sys
from pathlib import Path
import numpy as np
from neox_causal_lm.array_cache import stored
Path.replace = lambda self, target: os.kill(os.getpid(), signal.SIGKILL)
stored([Path(sys.argv[1])], "a" * 64, lambda: (np.arange(9),))
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "index")], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "index").exists()
    assert same(stored([tmp_path / "index"], KEY, arrays), arrays())
    assert [path.name for path in tmp_path.iterdir()] == ["index"], "and what it left is cleared away"


def test_a_full_disk_leaves_no_half_file(tmp_path):
    code = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from neox_causal_lm.array_cache import stored
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
assert len(stored([Path(sys.argv[1])], "a" * 64, lambda: (np.arange(100_000),))[0]) == 100_000
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "index")], check=True)
    assert not list(tmp_path.iterdir())

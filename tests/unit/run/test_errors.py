"""How a process ends."""

import errno
import os
import subprocess
import sys

import pytest

from neox_core.errors import RankError, UsageError
from neox_core.run.exit import for_the_user

ENDLESS = """
from neox_core.errors import run_main
def main():
    while True:
        print("line")
run_main(main)
"""

MISTAKEN = """
from neox_core.errors import DataError, run_main
def main():
    print("line")
    raise DataError("mistake")
run_main(main)
"""


def test_a_reader_that_has_enough_is_no_error() -> None:
    command = [sys.executable, "-c", ENDLESS]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(30) == 141


def test_what_is_left_to_write_beside_a_mistake_is_no_error_either() -> None:
    read, written = os.pipe()
    os.close(read)
    command, env = [sys.executable, "-c", MISTAKEN], os.environ | {"PYTHONUNBUFFERED": ""}
    done = subprocess.run(command, stdout=written, stderr=subprocess.PIPE, text=True, env=env, check=False)
    os.close(written)
    assert (done.stderr, done.returncode) == ("error: mistake\n", 141)


OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 1 GiB",
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 8",
    "[enforce fail at alloc_cpu.cpp:100] data. DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes.",
)


@pytest.mark.parametrize("error", [*map(RuntimeError, OUT_OF_MEMORY), MemoryError("Unable to allocate 8 GiB")])
def test_a_rank_without_memory_says_what_helps(error: Exception) -> None:
    told = for_the_user(error, 3)
    assert isinstance(told, RankError)
    assert told.message.startswith(f"rank 3 is out of memory: {type(error).__name__}: ")
    assert "train_micro_batch_size_per_gpu" in told.hint


def test_a_full_disk_is_said_and_other_errors_stay_what_they_are() -> None:
    full = for_the_user(OSError(errno.ENOSPC, "No space left on device"), 0)
    assert isinstance(full, UsageError)
    assert "No space left on device" in full.message
    for error in (RuntimeError("expected 2"), OSError(errno.EBADF, "Bad file descriptor"), KeyError("key")):
        assert for_the_user(error, 0) is error


@pytest.mark.parametrize("megabytes", [200])
def test_a_command_whose_memory_is_limited_says_so_without_a_traceback(megabytes: int) -> None:
    """torch alone needs more addresses than that."""
    limit = (megabytes << 20, megabytes << 20)
    code = f"import resource; resource.setrlimit(resource.RLIMIT_AS, {limit}); from neox_core.cli.main import neox; "
    command = [sys.executable, "-c", f"{code}neox.main(['kernels', 'list'])"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert "Traceback" not in done.stderr
    assert (done.returncode, done.stderr.count("error:")) == (2, 1), done.stderr
    assert "memory ran out" in done.stderr


@pytest.mark.parametrize("mebibytes", [80, 120, 150])
def test_libraries_without_room_are_not_started(mebibytes: int) -> None:
    """With 150 MiB importing numpy shows a traceback, with 120 OpenBLAS ends the process with words of its own."""
    limit = (mebibytes << 20, mebibytes << 20)
    code = f"import resource, sys; resource.setrlimit(resource.RLIMIT_AS, {limit}); sys.argv[1:] = ['numpy']; "
    command = [sys.executable, "-c", f"{code}from neox_core.cli.process import main; main()"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: memory ran out: this needs at least 160 MiB"), done.stderr
    assert done.stderr.count("\n") == 2, done.stderr

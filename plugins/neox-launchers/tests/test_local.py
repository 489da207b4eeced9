import os
import resource
import subprocess
import sys

import pytest
from neox_author.testing import assert_light, build, check_launcher, example_plan, load_only
from neox_launchers.ranks import OneRank

from neox_core.errors import ConfigError, UsageError


@pytest.fixture(scope="module")
def catalog():
    return load_only("neox-launchers")


def test_listing_is_light():
    assert_light("neox-launchers")


def test_keeps_the_contract(catalog, tmp_path):
    command = check_launcher(catalog, "local")
    assert "neox_launchers.elastic" in command.argv
    elsewhere = check_launcher(catalog, "local", log_dir=str(tmp_path / "mine"))
    assert elsewhere.argv[-1] == str(tmp_path / "mine")


def test_cores_are_shared_out_and_glibc_keeps_memory_on_a_cpu(catalog, tmp_path):
    cores = len(os.sched_getaffinity(0))
    for ranks in (1, 2, 4 * cores):
        env = check_launcher(catalog, "local", example_plan(tmp_path, ranks=[ranks])).env
        assert env["OMP_NUM_THREADS"] == str(max(1, cores // ranks))
        assert env["DS_ACCELERATOR"] == "cpu"
        # documented range of mallopt(3): thresholds are a C int or size_t
        assert int(env["MALLOC_MMAP_THRESHOLD_"]) <= 2**20  # and "MALLOC_MMAP_MAX_" is the rank's, see its loop
        assert int(env["MALLOC_TRIM_THRESHOLD_"]) >= 2**30


def test_leaves_memory_and_threads_of_a_gpu_rank_alone(catalog, tmp_path):
    env = check_launcher(catalog, "local", example_plan(tmp_path, ranks=[2], device="cuda")).env
    assert not [name for name in env if name.startswith("MALLOC") or name in {"OMP_NUM_THREADS", "DS_ACCELERATOR"}]


def test_other_hosts_are_refused(catalog, tmp_path):
    entry = catalog.find("launcher", "local")
    with pytest.raises(UsageError, match="this machine only; the plan has 2 hosts"):
        entry.load()(example_plan(tmp_path, ranks=[2, 2]), tmp_path / "run.json", build(entry))


@pytest.mark.parametrize("launcher", ["local", "pdsh"])
@pytest.mark.parametrize("within", ["", "deeper/still"])
def test_a_file_in_the_place_of_the_logs_is_said_before_a_process_starts(catalog, tmp_path, launcher, within):
    (tmp_path / "mine").write_text("")
    (tmp_path / "logs").symlink_to("nowhere")
    entry, plan = (
        catalog.find("launcher", launcher),
        example_plan(tmp_path, ranks=[1] if launcher == "local" else [1, 1]),
    )
    for log_dir, place in ((tmp_path / "mine" / within, "mine"), (None, "logs")):
        settings = build(entry, **({"log_dir": str(log_dir)} if log_dir else {}))
        with pytest.raises(ConfigError, match=rf"cannot hold the logs of the ranks: \S+/{place} is not a folder"):
            entry.load()(plan, tmp_path / "run.json", settings)
    assert entry.load()(plan, tmp_path / "run" / "run.json", build(entry, log_dir=str(tmp_path / "new" / "deep")))


def test_a_launcher_that_torch_would_have_no_room_in_is_not_started(catalog, tmp_path, monkeypatch):
    """With 500 MiB OpenBLAS ends it, with 600 glibc, with words of their own."""
    assert check_launcher(catalog, "local", example_plan(tmp_path))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (500 << 20, 500 << 20))
    entry = catalog.find("launcher", "local")
    with pytest.raises(UsageError, match="at least 1024 MiB of address space, and the limit is 500 MiB"):
        entry.load()(example_plan(tmp_path), tmp_path / "run.json", build(entry))


FEW_FILES = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1000))
from neox_author.testing import example_plan
from neox_core.plan.runfile import write_runfile
from neox_launchers import elastic
folder = Path(sys.argv[1])
write_runfile(example_plan(folder), folder / "run.json")
sys.argv = ["elastic", str(folder / "run.json"), str(folder)]
elastic._agent = lambda *_: sys.exit(str(resource.getrlimit(resource.RLIMIT_NOFILE)))
elastic.main()
"""


def test_an_agent_and_its_ranks_may_open_as_many_files_as_the_system_allows(tmp_path):
    ran = subprocess.run([sys.executable, "-c", FEW_FILES, tmp_path], capture_output=True, text=True, check=False)
    assert ran.stderr == "(1000, 1000)\n"


def test_the_only_rank_of_a_run_takes_a_free_port_itself(monkeypatch, tmp_path):
    """Two runs that start at the same time would both find `master_port` free, and one of them would fail."""
    seen = tmp_path / "port"
    code = f"import os; open({str(seen)!r}, 'w').write(os.environ['MASTER_PORT'])"
    monkeypatch.setattr("neox_launchers.ranks.command", lambda run_file: (sys.executable, "-c", code))
    assert OneRank(tmp_path / "run.json", tmp_path / "logs", "127.0.0.1").exits() == []
    assert seen.read_text() == "0"

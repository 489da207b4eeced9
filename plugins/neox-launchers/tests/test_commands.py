"""The commands of the launchers for several hosts: what pdsh, mpirun and srun are asked, next to DeepSpeed's own."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from itertools import pairwise

import pytest
from attrs import evolve
from neox_author.testing import assert_light, check_launcher, example_plan, load_only
from neox_launchers.agents import login
from neox_launchers.host_settings import HostSettings
from neox_launchers.mpi import require_its_own
from neox_launchers.pdsh import remote

from neox_core.errors import ConfigError, UsageError
from neox_core.plan.runfile import Host, write_runfile


def test_listing_is_light_and_the_contract_is_kept(tmp_path):
    assert_light("neox-launchers")
    catalog = load_only("neox-launchers")
    command = check_launcher(catalog, "pdsh", example_plan(tmp_path, ranks=[2, 2]))
    assert "neox_launchers.hosts" in command.argv
    alone = check_launcher(catalog, "pdsh", example_plan(tmp_path, ranks=[2]))
    assert "neox_launchers.hosts" not in alone.argv


def test_mpirun_starts_one_agent_a_host_with_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_NOTE", "a b")
    plan = example_plan(tmp_path, ranks=[2, 2])
    argv = check_launcher(load_only("neox-launchers"), "openmpi", plan).argv
    mpirun = argv[argv.index("mpirun") :]
    assert mpirun[mpirun.index("-n") + 1] == "2"
    assert mpirun[mpirun.index("--host") + 1] == "localhost,host1"
    variables = {pair for mark, pair in pairwise(mpirun) if mark == "-x"}
    assert {"NCCL_NOTE=a b", "DS_ACCELERATOR=cpu"} <= variables
    assert mpirun[-1] == "mpi"
    alone = check_launcher(load_only("neox-launchers"), "openmpi", example_plan(tmp_path, ranks=[2]))
    assert "mpirun" not in alone.argv


def test_the_names_of_many_hosts_fit_on_the_command_line_of_pdsh(tmp_path):
    plan = example_plan(tmp_path, ranks=[1])
    hosts = tuple(Host(f"{number:04d}{'x' * 249}", 1) for number in range(1000))
    plan = evolve(plan, cluster=evolve(plan.cluster, hosts=hosts))
    argv = check_launcher(load_only("neox-launchers"), "pdsh", plan, pdsh_tree_from=0).argv
    assert ",".join(word for mark, word in pairwise(argv) if mark == "-w") == ",".join(host.name for host in hosts)
    subprocess.run(["true", *argv], check=True)  # one word of all would be refused here


@pytest.mark.parametrize("launcher", ["mvapich", "mpich", "impi"])
def test_hydra_starts_one_agent_a_host_with_the_environment(tmp_path, monkeypatch, launcher):
    monkeypatch.setenv("NCCL_NOTE", "a b")
    plan = example_plan(tmp_path, ranks=[2, 2])
    argv = check_launcher(load_only("neox-launchers"), launcher, plan).argv
    mpirun = argv[argv.index("mpirun") :]
    assert mpirun[1:7] == ("-n", "2", "-ppn", "1", "-hosts", "localhost,host1")
    assert mpirun[mpirun.index("NCCL_NOTE") - 1 :][:3] == ("-genv", "NCCL_NOTE", "a b")
    assert mpirun[-1] == "mpi"
    alone = check_launcher(load_only("neox-launchers"), launcher, example_plan(tmp_path, ranks=[2]))
    assert "mpirun" not in alone.argv


def test_srun_starts_one_agent_a_host_and_lets_the_others_save(tmp_path):
    command = check_launcher(load_only("neox-launchers"), "slurm", example_plan(tmp_path, ranks=[2, 2]))
    srun = command.argv[command.argv.index("srun") :]
    options = dict(pairwise(srun))
    assert (options["--nodes"], options["--ntasks-per-node"], options["--nodelist"]) == ("2", "1", "localhost,host1")
    assert "--kill-on-bad-exit=0" in srun
    assert {"PATH", "DS_ACCELERATOR"} <= set(options["--export"].split(","))
    assert srun[-1] == "slurm"
    assert command.env["DS_ACCELERATOR"] == "cpu"
    charged = {"account": "lab", "comment": "a run", "partition": "p"}
    found = check_launcher(load_only("neox-launchers"), "slurm", example_plan(tmp_path, ranks=[2, 2]), **charged)
    assert dict(pairwise(found.argv)).items() >= {f"--{name}": value for name, value in charged.items()}.items()
    assert "--account" not in srun
    alone = check_launcher(load_only("neox-launchers"), "slurm", example_plan(tmp_path, ranks=[2]))
    assert "srun" not in alone.argv


@pytest.mark.parametrize(
    ("launcher", "program"), [("pdsh", "pdsh"), ("openmpi", "mpirun"), ("mpich", "mpirun"), ("slurm", "srun")]
)
def test_program_and_options_are_the_users(tmp_path, launcher, program):
    settings = {"launcher_args": "-t 5 --x 'a b'", "launcher_program": f"/opt/it/{program}"}
    plan = example_plan(tmp_path, ranks=[2, 2])
    argv = check_launcher(load_only("neox-launchers"), launcher, plan, **settings).argv
    assert program not in argv
    first = argv.index(f"/opt/it/{program}")
    assert argv[argv.index("-t", first) :][:4] == ("-t", "5", "--x", "a b")
    assert argv.index("--x") < argv.index("neox_launchers.elastic")  # it is no word of the agent


def logged_in(tmp_path, *hosts):
    plan = example_plan(tmp_path, ranks=[2, 2])
    places = tuple(evolve(place, name=host) for place, host in zip(plan.cluster.hosts, hosts, strict=True))
    return evolve(plan, cluster=evolve(plan.cluster, hosts=places))


@pytest.mark.parametrize("launcher", ["pdsh", "openmpi", "mpich"])
def test_logins_of_a_hostfile_are_told_to_ssh(tmp_path, launcher):
    plan = logged_in(tmp_path, "me@a:2222", "me@b:2222")
    assert login(plan) == {"-l": "me", "-p": "2222"}
    argv = check_launcher(load_only("neox-launchers"), launcher, plan).argv
    assert "a,b" in argv
    assert launcher != "pdsh" or dict(pairwise(argv))["-l"] == "me"
    plan = logged_in(tmp_path, "me@a", "b")
    with pytest.raises(ConfigError, match="different users or ports for ssh: me, none"):
        check_launcher(load_only("neox-launchers"), launcher, plan)


def test_srun_takes_no_login(tmp_path):
    catalog = load_only("neox-launchers")
    with pytest.raises(ConfigError, match="srun does not use ssh"):
        check_launcher(catalog, "slurm", logged_in(tmp_path, "me@a", "me@b"))


@pytest.mark.parametrize("args", ["a 'b", '"'])
def test_options_that_are_no_words_are_refused(args):
    with pytest.raises(ValueError, match="as a shell takes them"):
        HostSettings(launcher_args=args)


@pytest.mark.parametrize(
    ("launcher", "program", "fault"),
    [
        ("mpich", "mpirun", "mpirun is the mpirun of Open MPI, which `launcher: mpich` cannot start"),
        ("impi", "mpirun", "mpirun is the mpirun of Open MPI, which `launcher: impi` cannot start"),
        ("openmpi", "mpirun.mpich", "mpirun.mpich is the mpirun of MPICH or MVAPICH, which `launcher: openmpi` cannot"),
        ("mvapich", "mpirun.mpich", ""),
        ("openmpi", "mpirun", ""),
        ("mpich", "true", ""),
        ("slurm", "mpirun", ""),
        ("mpich", "not-there", ""),
    ],
)
def test_the_mpirun_of_another_library_is_recognised(launcher, program, fault):
    if program.startswith("mpirun") and not shutil.which(program):
        pytest.skip(f"needs {program}")
    with pytest.raises(UsageError, match=re.escape(fault)) if fault else nullcontext():
        require_its_own(launcher, program)


def test_a_host_that_slurm_calls_otherwise_is_named(tmp_path):
    write_runfile(example_plan(tmp_path, ranks=[2, 1]), tmp_path / "run.json")
    done = subprocess.run(
        [sys.executable, "-m", "neox_launchers.elastic", "run.json", "logs", "slurm"],
        cwd=tmp_path, env=os.environ | {"SLURMD_NODENAME": "node-7"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "Slurm has started an agent on node-7, and the hosts of the plan are localhost, host1" in done.stderr


def test_pdsh_is_called_as_deepspeed_calls_it(tmp_path):
    from argparse import Namespace

    from deepspeed.launcher.multinode_runner import PDSHRunner

    args = Namespace(
        user_script="train.py", user_args=[], ssh_port=None, launcher_args="", venv_script=None, no_python=False,
        module=False, no_local_rank=False, save_pid=False, enable_each_rank_log=None, master_addr="h", master_port=1,
    )  # fmt: skip
    theirs, _, env = PDSHRunner(args, "e30=").get_cmd({}, {"localhost": [0, 1], "host1": [0, 1]})
    fanout = theirs.index("-f") + 1  # 1024, beyond which hosts would wait for the first to end
    options = [each for at, each in enumerate(theirs[: theirs.index("-w") + 2]) if at != fanout]
    mine = check_launcher(load_only("neox-launchers"), "pdsh", example_plan(tmp_path, ranks=[2, 2])).argv
    assert set(options) <= set(mine[mine.index("pdsh") :])
    assert mine[mine.index("-w") + 1] == theirs[theirs.index("-w") + 1] == "localhost,host1"
    assert int(mine[mine.index("-f") + 1]) >= int(theirs[fanout]), "as many hosts at once, or more"
    assert mine[mine.index("-R") + 1] == env["PDSH_RCMD_TYPE"]
    assert "--node_rank=%n" in theirs
    assert mine[-1] == "%n"


@pytest.mark.parametrize(
    "word", ["a b", "it's", "$HOME", "100%", "%n", "`id`", "a;b", "*", "", "-x", 'say "hi"', "a\nb"]
)
def test_no_word_is_anything_to_a_shell(tmp_path, word):
    """What a host's shell makes of the words is the very argv and environment that was meant."""
    script = "import os, sys, json; print(json.dumps([sys.argv[1:], os.environ['NOTE'], os.getcwd()]))"
    words = remote((sys.executable, "-c", script, word), {"NOTE": word}, str(tmp_path))
    text = " ".join(words).replace("%%", "%")  # as pdsh does; a single % would be its own mark
    assert "%" not in " ".join(words).replace("%%", "")
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [[word], word, str(tmp_path)]

"""`neox train` with real ranks: one and two processes over gloo, a tiny model."""

import math
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from attrs import evolve
from neox_author.testing.ports import free_port
from toy_runs import LONG, NEOX, VOCAB, Run, make_toy

from neox_core.plan.runfile import write_runfile
from neox_core.plan.stored.installed import stored_plan

pytestmark = [pytest.mark.ranks, pytest.mark.deadline]


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return make_toy(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def finished(toy, tmp_path_factory):
    """The same 40 steps by one rank of 8 samples and by two ranks of 4."""
    runs = {}
    for ranks, micro_batch in ((1, 8), (2, 4)):
        sets = (f"num_gpus={ranks}", f"train_micro_batch_size_per_gpu={micro_batch}", "save-interval=20")
        folder = tmp_path_factory.mktemp(f"ranks{ranks}")
        for name in ("torch", "numpy", "json", "neox_core"):  # beside the config, and none of them is what it says
            (folder / f"{name}.py").write_text(f"raise SystemExit('{name}.py of the current folder is run')\n")
        run = Run(toy, folder, *sets)
        runs[ranks] = (run, run.end())
    return runs


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_trains(finished, ranks):
    run, (code, out, err) = finished[ranks]
    assert code == 0, err
    losses = run.losses()
    assert list(losses) == [10, 20, 30, 40]
    assert losses[10] < math.log(VOCAB)  # below a uniform guess
    assert losses[40] < 0.3 * losses[10]
    validations = {line["step"]: line for line in run.metrics() if "valid_loss" in line}
    assert list(validations) == [20, 40]
    assert validations[40]["valid_perplexity"] == pytest.approx(math.exp(validations[40]["valid_loss"]))
    assert (run.save / "latest").exists()
    assert "40/40" in out


def test_two_ranks_train_what_one_does(finished):
    one, two = finished[1][0].losses(), finished[2][0].losses()
    assert two == pytest.approx(one, rel=1e-3)
    assert two[10] == pytest.approx(one[10], rel=1e-5)
    hashes = [[line.get("data_hash") for line in finished[ranks][0].metrics() if "loss" in line] for ranks in (1, 2)]
    assert hashes[0] == hashes[1]
    assert len(set(hashes[0])) == 4, "each step is on other samples"


def test_what_is_logged_is_complete_and_consistent(finished):
    run, _ = finished[2]
    tokens_per_step = 2 * 4 * 32
    # 6 per weight of the matmuls and 12 * layers * hidden * seq for attention
    weights = 2 * (4 * 32 * 32 + 2 * 32 * 128) + 32 * VOCAB
    flops = 6 * weights + 12 * 2 * 32 * 32
    for line in run.metrics():
        if "loss" not in line:
            continue
        assert line["lr"] == 0.01
        assert 0 < line["grad_norm"] < 100
        assert line["tokens_per_s"] == pytest.approx(tokens_per_step / line["step_s"])
        assert line["mfu"] == pytest.approx(line["tokens_per_s"] * flops / (2 * 0.1e12))
        assert 0.1 < line["memory_gib"] < 4
        assert line["skipped_steps"] == 0
        assert 0 <= line["data_wait_s"] < line["step_s"]
    (startup,) = [line for line in run.metrics() if "startup_total_s" in line]
    parts = [value for name, value in startup.items() if name.startswith("startup_") and name != "startup_total_s"]
    assert sum(parts) == pytest.approx(startup["startup_total_s"], abs=0.01)
    assert min(parts) >= 0


EXPECTED = re.compile(
    r"size: [\d,]+ parameters; about |"
    r"[\d.]+ M parameters on |mfu |start-up |step \d+|saved |loss by step"
    r"| *[\d.]* *[┤│┌└┬]| *[\d. ]+$"  # the chart
)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_says_nothing_but_its_own(finished, ranks):
    run, (_, out, err) = finished[ranks]
    assert err == ""
    assert [line for line in out.splitlines() if not EXPECTED.match(line)] == []
    for rank in range(ranks):
        assert (run.save / "logs" / f"rank{rank}.log").read_text() == ""


def test_a_terminal_sees_the_start_and_every_stretch_of_steps(toy, tmp_path):
    """Between two logs too: no step here is a log step but the last."""
    sets = ("num_gpus=1", "train-iters=300", "log-interval=1000", "eval-interval=100", "save-interval=200")
    command = [*NEOX, "train", str(toy / "config.yml"), "--run-dir", str(tmp_path / "run")]
    command += [part for each in (*sets, f"save={tmp_path / 'save'}") for part in ("--set", each)]
    here, there = os.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "140"}
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stdin=there, stdout=there, stderr=there)
    os.close(there)
    seen = b""
    with suppress(OSError):  # the other end is closed: the run is over
        while part := os.read(here, 65536):
            seen += part
    os.close(here)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    assert process.wait(60) == 0, text
    for doing in ("starting the ranks", "importing torch", "opening the data", "building the model", "engine"):
        assert doing in text
    steps = {int(step) for step in re.findall(r"step +(\d+)/300", text)}
    assert len(steps - {0, 1, 100, 200, 300}) > 1, sorted(steps)
    assert seen.rindex(b"\x1b[?25h") > seen.rindex(b"\x1b[?25l")  # the cursor is back


def test_interrupted_saved_and_resumed(toy, tmp_path):
    run = Run(toy, tmp_path, *LONG)
    run.wait_for_step(10)
    plan = (run.save / "run.json").stat().st_ino
    second = subprocess.run(**run.how, capture_output=True, text=True, check=False)
    assert (second.returncode, "another run is using this folder" in second.stderr) == (2, True), second.stderr
    assert (run.save / "run.json").stat().st_ino == plan
    os.killpg(run.process.pid, signal.SIGINT)  # what a terminal does
    code, out, err = run.end()
    assert code == 130, err
    assert "Traceback" not in out + err
    stopped = int(re.search(r"stopped after step (\d+)", out)[1])
    assert (run.save / "latest").read_text().split()[0] == f"step-{stopped:08d}"
    assert not (run.save / "failure.json").exists()

    last = stopped + 20
    again = Run(toy, tmp_path, *LONG, f"load={run.save}", f"exit-interval={last}")
    code, out, err = again.end()
    assert code == 0, err
    assert f"at step {stopped}" in out
    steps = list(again.losses())
    assert steps == sorted(set(steps))
    assert steps[0] == 5
    assert set(range(5, stopped, 5)) <= set(steps)
    assert max(steps) > stopped

    other = Run(toy, tmp_path, *LONG, f"load={run.save}", "seed=8")
    code, out, err = other.end()
    assert code == 5
    assert "used other samples than this run has there" in err


def test_more_ranks_are_refused_before_they_start_with_the_words_that_mend_it(toy, finished, tmp_path):
    more = ("num_gpus=2", "train-iters=42", "lr-decay-iters=40", f"load={finished[1][0].save}")
    run = Run(toy, tmp_path, *more, "train_micro_batch_size_per_gpu=8")
    code, _, err = run.end()
    assert code == 5
    assert "8 samples a step on 1 rank, and this run takes 16 on 2 ranks" in err
    assert not run.save.exists()
    words = re.search(r"`([^`]*)` keeps the batch", err)[1].removeprefix("--set ").split(" --set ")
    code, out, err = Run(toy, tmp_path, *more, *words).end()
    assert code == 0, err
    assert "at step 40" in out


def test_stages_for_which_zero_would_wait_are_refused(toy, tmp_path):
    """The output layer alone has no norm, and so one group of parameters where the other stage has two."""
    alone = ("pipe-parallel-size=2", "pipe-partition-method=type:embedding", "zero_optimization.stage=1")
    code, _, err = Run(toy, tmp_path, *alone, "stall-timeout=20").end()
    assert code == 2
    assert "equally many groups of parameters (with and without weight decay), not 2, 1" in err
    assert "pipe-partition-method: type:transformer" in err


def test_three_stages_train_what_one_rank_does(toy, tmp_path):
    """The first and the last hold the embedding, so their ranks are in a group in which the second is not."""
    shape = ("num-layers=3", "train-iters=10", "lr-decay-iters=10", "train-batch-size=8", "stall-timeout=10")
    losses = []
    for stages, micro_batch in ((1, 8), (3, 2)):
        (tmp_path / str(stages)).mkdir()
        layout = (f"num_gpus={stages}", f"pipe-parallel-size={stages}", f"train_micro_batch_size_per_gpu={micro_batch}")
        run = Run(toy, tmp_path / str(stages), *shape, *layout)
        code, _, err = run.end()
        assert code == 0, err
        losses.append(run.losses()[10])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_ranks_with_different_plans_refuse_to_start(finished, tmp_path):
    run, _ = finished[2]
    plan = stored_plan(run.save / "run.json")
    files = [tmp_path / str(rank) / "run.json" for rank in (0, 1)]
    write_runfile(plan, files[0])
    write_runfile(evolve(plan, train=evolve(plan.train, seed=8)), files[1])
    port = free_port()
    processes = []
    for rank, file in enumerate(files):
        env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, "-m", "neox_core.run.rank", str(file)]
        processes.append(
            subprocess.Popen(
                command, env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 6
        assert "rank 1: the run file (SHA-256) is" in err
        assert "Traceback" not in err


def test_a_dry_run_starts_nothing_and_imports_no_torch(toy, tmp_path):
    script = (
        "import sys\nfrom neox_core.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print(sorted({'torch', 'numpy', 'deepspeed'} & set(sys.modules)))\n"
    )
    command = [sys.executable, "-c", script, "train", str(toy / "config.yml"), "--set", "save=here", "--dry-run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "[]"
    assert "2 on localhost, cpu, gloo, by local" in done.stdout
    assert "neox_launchers.elastic" in done.stdout
    assert list(Path(tmp_path).iterdir()) == []


def test_a_dry_run_shows_what_other_hosts_get(toy: Path) -> None:
    (toy / "hosts").write_text("one slots=2\ntwo slots=2\n")
    (toy / "some.env").write_text("MINE=1\n")
    more = ["hostfile=hosts", "launcher=pdsh", "device=cpu", "save=here", "launcher-env=[LAB_*]"]
    words = [word for each in more for word in ("--set", each)]
    env = os.environ | {"LAB_PLACE": "a", "LAB_KEY": "s3cret", "DS_ENV_FILE": "some.env", "HOME": str(toy / "none")}
    command = [*NEOX, "train", "config.yml", *words, "--dry-run"]
    done = subprocess.run(command, cwd=toy, env=env, capture_output=True, text=True, check=True)
    notes = dict(line.split(": ", 1) for line in done.stdout.splitlines() if line.startswith("the hosts "))
    assert {"LAB_PLACE", "MINE"} <= set(notes["the hosts get"].split(", "))
    assert "LAB_KEY" in next(names for what, names in notes.items() if "do not get" in what).split(", ")
    assert notes["the hosts get what is written in"] == "some.env"
    assert "s3cret" not in done.stdout + done.stderr

"""`neox train` with real ranks: one and two processes over gloo, a tiny model, and everything that can end a run."""

import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from attrs import evolve
from neox_author.testing import build, load_only

from neox_core.plan.runfile import write_runfile
from neox_core.plan.stored.installed import stored_plan

pytestmark = pytest.mark.ranks

NEOX = [str(Path(sys.executable).with_name("neox"))]
VOCAB = 64

CONFIG = """
num-layers: 2
hidden-size: 32
num-attention-heads: 2
seq-length: 32
max-position-embeddings: 32
norm: rmsnorm
pos-emb: rotary
hidden-dropout: 0
attention-dropout: 0
padded-vocab-size: 64
data-path: {folder}/toy
data-impl: mmap
split: 90,10,0
num-workers: 0
device: cpu
num_gpus: 2
train_micro_batch_size_per_gpu: 4
optimizer: {{type: Adam, params: {{lr: 0.01}}}}
lr-decay-style: constant
train-iters: 40
eval-interval: 20
save-interval: 1000
eval-iters: 2
log-interval: 10
peak-tflops: 0.1
seed: 7
"""

FAULTY = '''
import ctypes, os, time

def faulty(settings):
    """GELU, and after a few calls what FAULT says, on rank 1 only."""
    import torch

    class Faulty:
        gated = False
        calls = 0

        def __call__(self, x):
            self.calls += 1
            if self.calls == 20 and os.environ["RANK"] == "1":
                if os.environ["FAULT"] == "raise":
                    raise ZeroDivisionError("planted in the activation")
                if os.environ["FAULT"] == "segfault":
                    ctypes.string_at(0)
                if os.environ["FAULT"] == "hang":
                    time.sleep(1000)
            out = torch.nn.functional.gelu(x)
            if self.calls >= 20 and os.environ["RANK"] == "1" and os.environ["FAULT"] == "infinite gradient":
                out.register_hook(lambda gradient: gradient * float("inf"))
            return out

    return Faulty()
'''


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """A folder with a dataset of counting in threes, which is easy to learn, and a plugin that fails on demand."""
    folder = tmp_path_factory.mktemp("toy")
    entry = load_only("neox-data-indexed").find("data backend", "mmap")
    writer = entry.load()(build(entry)).create(folder / "toy", VOCAB)
    for document in range(200):
        writer.add_document([(7 * document + 3 * place) % 60 for place in range(120)])
    writer.close()
    (folder / "config.yml").write_text(CONFIG.format(folder=folder))
    plugin = folder / "plugin"
    info = plugin / "neox_faulty-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: neox-faulty\nVersion: 0.1\nKeywords: neox-api-1\n")
    (info / "entry_points.txt").write_text("[neox.plugins]\nfaulty = neox_faulty.plugin\n")
    (plugin / "neox_faulty").mkdir()
    (plugin / "neox_faulty" / "__init__.py").write_text("")
    (plugin / "neox_faulty" / "part.py").write_text(FAULTY)
    (plugin / "neox_faulty" / "plugin.py").write_text(
        textwrap.dedent(
            """
            from neox_core.api import Component, hookimpl

            @hookimpl
            def neox_activations():
                return [Component("faulty", "neox_faulty.part:faulty")]
            """
        )
    )
    return folder


class Run:
    """One `neox train` in a process group of its own, its output in files."""

    def __init__(self, toy, folder, *sets, flags=(), **env):
        self.save = folder / "save"
        self.out, self.err = folder / "out.txt", folder / "err.txt"
        command = [*NEOX, "train", str(toy / "config.yml"), *flags]
        for each in (f"save={self.save}", *sets):
            command += ["--set", each]
        path = os.pathsep.join(filter(None, (str(toy / "plugin"), os.environ.get("PYTHONPATH"))))
        self.how = {"args": command, "cwd": folder, "env": {**os.environ, "PYTHONPATH": path, **env}}
        with self.out.open("w") as out, self.err.open("w") as err:
            self.began = time.monotonic()
            self.process = subprocess.Popen(**self.how, stdout=out, stderr=err, start_new_session=True)

    def end(self, timeout=120):
        code = self.process.wait(timeout)
        return code, self.out.read_text(), self.err.read_text()

    def metrics(self):
        file = self.save / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def losses(self):
        return {line["step"]: line["loss"] for line in self.metrics() if "loss" in line}

    def wait_for_step(self, step, timeout=120):
        end = time.monotonic() + timeout
        while not any(done >= step for done in self.losses()):
            assert time.monotonic() < end, self.out.read_text() + self.err.read_text()
            assert self.process.poll() is None, self.out.read_text() + self.err.read_text()
            time.sleep(0.05)

    def ranks(self):
        found = {}
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if "neox_core.run.rank" in child.cmdline():
                found[int(child.environ()["RANK"])] = child
        return found


PLAIN = "engine=plain"  # which starts sooner, where what is tested surrounds the engine
LONG = ("train-iters=100000", "log-interval=5", "eval-interval=100000")


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


def test_a_rank_killed_is_named_and_the_others_are_stopped(toy, tmp_path):
    run = Run(toy, tmp_path, *LONG, PLAIN)
    run.wait_for_step(5)
    ranks = run.ranks()
    assert sorted(ranks) == [0, 1]
    ranks[1].kill()
    code, _, err = run.end()
    assert code == 6
    assert "rank 1: was killed by SIGKILL" in err
    assert "Traceback (most recent call last):\n  File" not in err  # the host's own
    assert not ranks[0].is_running()


@pytest.mark.parametrize(
    ("fault", "said"),
    [("raise", "ZeroDivisionError: planted in the activation"), ("segfault", "was killed by SIGSEGV")],
)
def test_a_rank_that_dies_by_itself_is_named_with_its_last_lines(toy, tmp_path, fault, said):
    run = Run(toy, tmp_path, *LONG, PLAIN, "activation=faulty", FAULT=fault)
    code, _, err = run.end()
    assert code == 6
    assert f"error: rank 1: {said}" in err
    assert re.search(r"\n  \| .*part\.py", err)  # the last lines of its log lead to the place
    assert json.loads((run.save / "failure.json").read_text())["rank"] == 1


PATIENT = "stall-timeout=6"


def test_a_rank_that_hangs_is_named_with_the_stacks_of_all(toy, tmp_path):
    run = Run(toy, tmp_path, *LONG, PLAIN, PATIENT, "activation=faulty", FAULT="hang")
    code, _, err = run.end()
    assert code == 6
    assert re.search(r"error: rank 1: made no progress for \d+ s after step \d+\n", err), err
    assert re.search(r"\n  \|   File \".*part\.py\", line \d+ in __call__\n", err), "the place comes first"
    hangs, waits = ((run.save / "logs" / f"rank{rank}.log").read_text() for rank in (1, 0))
    assert "part.py" in hangs
    assert re.search(r"thread 0x.*\n  File .*neox_core/parallel/.* in wait_for\n", waits, re.IGNORECASE)
    reports = [json.loads((run.save / f"failure.rank{rank}.json").read_text()) for rank in (0, 1)]
    assert [report["lost_peer"] for report in reports] == [True, False]


def test_a_stop_that_could_not_save_says_so(toy, tmp_path):
    """The process of rank 1 is stopped as a debugger or a failing host would: it neither trains nor answers."""
    run = Run(toy, tmp_path, *LONG, PLAIN, PATIENT, "extra-save-iters=[5]")
    run.wait_for_step(10)
    ranks = run.ranks()
    ranks[1].suspend()
    time.sleep(0.5)
    run.process.terminate()
    code, out, err = run.end()
    assert code == 6, out
    assert re.search(
        r"error: rank 1: was asked to stop, could not save, and made no progress .*: its process is stopped", err
    )
    saved = max(out[at : at + 13] for at in (found.start() for found in re.finditer(r"step-\d{8}", out)))
    assert f"`--resume auto` continues from {run.save / saved};" in err
    assert not any(rank.is_running() for rank in ranks.values())


def test_a_stop_before_training_says_that_nothing_was_saved(toy, tmp_path):
    run = Run(toy, tmp_path, *LONG, PLAIN)
    end = time.monotonic() + 60
    while len(run.ranks()) < 2:
        assert time.monotonic() < end
        time.sleep(0.05)
    run.process.terminate()
    code, _, err = run.end()
    assert (code, "no checkpoint was written" in err) == (130, True), err


def test_a_loss_that_is_not_finite_stops_the_run_at_its_step(toy, tmp_path):
    sets = ("optimizer.params.lr=1.0e+30", "gradient_clipping=0", "log-interval=7")
    code, out, err = Run(toy, tmp_path, *sets).end()
    assert code == 6
    step = int(re.search(r"error: the loss is (?:nan|inf) at step (\d+) on rank 0, 1\n", err)[1])
    assert 2 <= step <= 7
    assert "Traceback" not in err
    assert "saved" not in out


def test_a_gradient_that_is_not_finite_is_an_error_with_its_rank_and_parameter(toy, tmp_path):
    """The loss is finite and stays so, since no update is made: the run would end with 0, having computed nothing."""
    sets = ("activation=faulty", "log-interval=40", "save-interval=5")
    run = Run(toy, tmp_path, *sets, FAULT="infinite gradient")
    code, out, err = run.end()
    assert code == 6, out
    found = re.search(
        r"error: the gradient is not finite at step (\d+) on rank 1: of layers\.1\.mlp\.\S+ and \d+ more\n", err
    )
    assert found, err
    assert "on-nonfinite-loss: skip" in err
    assert "Traceback" not in err
    saved = [int(step) for step in re.findall(r"saved \S*step-(\d+)", out)]
    assert all(step < int(found[1]) for step in saved)


def test_a_run_that_computes_nothing_ends_with_an_error(toy, tmp_path):
    sets = ("optimizer.params.lr=1.0e+6", "gradient_clipping=0", "on-nonfinite-loss=skip")
    run = Run(toy, tmp_path, *sets, "max-skipped-steps=7", "save-interval=3", "log-interval=40", "num_gpus=1")
    code, out, err = run.end()
    assert code == 6, out
    assert re.search(
        r"error: no update was made in 8 steps in a row: .* not finite since step \d+ on rank 0: of ", err
    ), err
    assert "max-skipped-steps is 7" in err


def test_an_error_in_the_data_is_said_once_with_its_exit_code(toy, tmp_path):
    code, _, err = Run(toy, tmp_path, PLAIN, "padded-vocab-size=32").end()
    assert code == 4, err
    assert err.count("is not among the model's 32") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize("killed", ["host", "launcher"])
def test_no_process_outlives_the_one_that_started_it(toy, tmp_path, killed):
    """A second Ctrl-C kills the launcher; a scheduler or a full memory may kill anything."""
    run = Run(toy, tmp_path, *LONG, PLAIN)
    run.wait_for_step(5)
    host = psutil.Process(run.process.pid)
    (launcher,) = host.children()
    everyone = host.children(recursive=True)
    assert len(everyone) == 3
    (host if killed == "host" else launcher).kill()
    _, alive = psutil.wait_procs(everyone, timeout=20)
    assert alive == []
    code, _, err = run.end()
    if killed == "launcher":
        assert code == 6
        assert re.search(r"launcher neox-launchers:local \S+ was killed by signal 9 .*memory", err)


def test_ranks_with_different_plans_refuse_to_start(finished, tmp_path):
    run, _ = finished[2]
    plan = stored_plan(run.save / "run.json")
    files = [tmp_path / str(rank) / "run.json" for rank in (0, 1)]
    write_runfile(plan, files[0])
    write_runfile(evolve(plan, train=evolve(plan.train, seed=8)), files[1])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
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


def test_a_rank_that_cannot_leave_a_report_still_says_what_is_wrong(tmp_path):
    env = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    command = [sys.executable, "-m", "neox_core.run.rank", str(tmp_path / "gone" / "run.json")]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


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

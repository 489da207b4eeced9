"""What a run measures and writes of itself when the config asks for it, with DeepSpeed's engine on two ranks."""

import csv
import json
import re
import subprocess
import sys

import pytest
from neox_author.testing import build, load_only

pytestmark = pytest.mark.ranks

LAYERS, HIDDEN, SEQ, VOCAB, BATCH = 2, 32, 32, 64, 4
CONFIG = f"""
num-layers: {LAYERS}
hidden-size: {HIDDEN}
num-attention-heads: 2
seq-length: {SEQ}
max-position-embeddings: {SEQ}
norm: rmsnorm
pos-emb: rotary
hidden-dropout: 0
attention-dropout: 0
padded-vocab-size: {VOCAB}
data-path: toy
split: 90,10,0
num-workers: 0
device: cpu
num_gpus: 2
train_micro_batch_size_per_gpu: {BATCH}
optimizer: {{type: Adam, params: {{lr: 0.01}}}}
scheduler: {{type: WarmupLR, params: {{warmup_max_lr: 0.01, warmup_num_steps: 4, warmup_type: linear}}}}
train-iters: 6
eval-interval: 3
eval-iters: 2
log-interval: 2
peak-tflops: 0.1
save: save
save-interval: 4
extra-save-iters: [1, 2]
checkpoint: {{tag_validation: Fail}}
tensorboard: {{enabled: true, output_path: events, job_name: job}}
csv_monitor: {{enabled: true, output_path: null}}
flops_profiler: {{enabled: true, profile_step: 3, module_depth: 1, top_modules: 3, output_file: profile.txt}}
comms_logger: {{enabled: true, prof_all: false, prof_ops: [all_reduce]}}
steps_per_print: 3
dump_state: true
"""
OFF = (
    "scheduler=null",
    "tensorboard.enabled=false",
    "csv_monitor.enabled=false",
    "flops_profiler.enabled=false",
    "comms_logger.enabled=false",
    "steps_per_print=null",
    "dump_state=false",
    "extra-save-iters=[]",
    "num_gpus=1",
)
LOGGED = ["16", "32", "48"]  # log steps 2, 4, 6 in samples of two ranks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured")
    entry = load_only("neox-data-indexed").find("data backend", "mmap")
    writer = entry.load()(build(entry)).create(folder / "toy", VOCAB)
    for document in range(100):
        writer.add_document([(7 * document + 3 * place) % 60 for place in range(120)])
    writer.close()
    (folder / "config.yml").write_text(CONFIG)
    return folder


def train(folder, *sets):
    command = [sys.executable, "-m", "neox_core", "train", "config.yml"]
    for each in sets:
        command += ["--set", each]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def out(folder):
    return train(folder)


def rows(folder, name):
    with (folder / "save/DeepSpeedJobName" / f"{name}.csv").open(newline="") as file:
        return list(csv.reader(file))


def metrics(folder):
    lines = [json.loads(line) for line in (folder / "save/metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]


def test_files_of_monitors_hold_what_was_reported(folder, out):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reported = metrics(folder)
    assert [line["step"] for line in reported] == [2, 4, 6]
    header, *logged = rows(folder, "Train_Samples_train_loss")
    assert header == ["step", "train_loss"]
    assert logged == [[at, str(line["loss"])] for at, line in zip(LOGGED, reported, strict=True)]
    events = EventAccumulator(str(folder / "events/job"))
    events.Reload()
    for name, key in (("train_loss", "loss"), ("lr", "lr"), ("elapsed_time_ms_step", "elapsed_time_ms_step")):
        scalars = events.Scalars(f"Train/Samples/{name}")
        assert [each.step for each in scalars] == list(map(int, LOGGED))
        assert [each.value for each in scalars] == pytest.approx([line[key] for line in reported])
    assert [each.step for each in events.Scalars("Valid/Samples/loss")] == [24, 48]


def test_the_scheduler_sets_the_rate(folder, out):
    # the update of step k is made at DeepSpeed's rate of iteration k - 2: (k - 2) / 4 of the highest
    assert [line["lr"] for line in metrics(folder)] == pytest.approx([0.0, 0.005, 0.01])


def test_timers_print_each_step_and_are_reported(folder, out):
    printed = [line for line in out.splitlines() if re.search(r"time \(ms\) \| fwd: .* \| step: ", line)]
    assert len(printed) == 6
    last = re.search(r"\| fwd: ([\d.]+) \| bwd: ([\d.]+) \|.*\| step: ([\d.]+)", printed[-1])
    reported = metrics(folder)[-1]
    names = ("elapsed_time_ms_forward", "elapsed_time_ms_backward", "elapsed_time_ms_step")
    assert [reported[name] for name in names] == pytest.approx(list(map(float, last.groups())), abs=0.006)
    assert {"elapsed_time_ms_backward_inner", "elapsed_time_ms_backward_allreduce"} < reported.keys()


def test_the_profile_counts_every_product_once(folder, out):
    profile = (folder / "profile.txt").read_text()
    assert "Profile Summary at step 4" in profile  # the step after 3 finished ones
    assert "DeepSpeed Flops Profiler ----" not in out
    tokens = BATCH * SEQ
    layer = tokens * 12 * HIDDEN**2 + 2 * BATCH * SEQ**2 * HIDDEN  # weights, then scores and what they weigh
    head = tokens * HIDDEN * VOCAB  # once, though the loss takes its gradient in the forward pass
    macs = re.search(r"fwd MACs per GPU:\s+([\d.]+) MMACs", profile)
    assert float(macs[1]) == pytest.approx((LAYERS * layer + head) / 1e6, abs=0.006)
    assert re.search(r"fwd latency - {'GPT': '[\d.]+ (us|ms|s)'", profile)  # measured, not since 1970
    assert "Detailed Profile" in profile


def test_collectives_are_counted_as_asked(folder, out):
    table = out[out.index("Comm. Op") :]
    assert re.search(r"all_reduce\n\s+\S+ KB\s+6 ", table)  # one gradient buffer a step
    assert "broadcast" not in table


def test_the_engine_says_what_it_is_asked_to_say(folder, out):
    steps = re.findall(r"step=(\d+), skipped=0, lr=", out)
    assert [step for step in steps if step != "0"] == ["3", "6"]
    assert "DeepSpeedEngine configuration" in out


def test_steps_to_save_at_add_to_the_interval(folder, out):
    assert sorted(path.name for path in (folder / "save").glob("step-*")) == [
        f"step-{step:08d}" for step in (1, 2, 4, 6)
    ]


def test_nothing_of_it_without_being_asked(folder, out):
    (folder / "events").rename(folder / "events.before")
    (folder / "profile.txt").unlink()
    quiet = train(folder, *OFF, "save=other")
    for words in ("time (ms)", "Comm. Op", "skipped=", "DeepSpeedEngine", "Profiler"):
        assert words not in quiet
    assert not any((folder / name).exists() for name in ("events", "other/DeepSpeedJobName", "profile.txt"))
    assert not any("elapsed_time" in line for line in (folder / "other/metrics.jsonl").read_text().splitlines())
    assert sorted(path.name for path in (folder / "other").glob("step-*")) == ["step-00000004", "step-00000006"]

"""Runs of `neox train` on a toy dataset, with a plugin that fails on demand."""

import json
import os
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import psutil
from neox_author.testing import build, load_only

from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import write_runfile

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
from datetime import timedelta

def faulty(settings):
    """GELU, and after a few calls what FAULT says, on rank 1 only."""
    import torch

    if os.environ.get("FAULT") == "short waits":
        groups = torch.distributed.distributed_c10d
        groups.default_pg_timeout = timedelta(seconds=4)  # of those that the engine makes
        for group in list(groups._world.pg_map):
            groups._set_pg_timeout(timedelta(seconds=4), group)

    class Faulty:
        gated = False
        calls = 0

        def __call__(self, x):
            self.calls += 1
            if os.environ.get("FAULT") == "slow":
                time.sleep(0.05)
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
PLAIN = "engine=plain"  # which starts sooner, where what is tested surrounds the engine
LONG = ("train-iters=100000", "log-interval=5", "eval-interval=100000")
STARTED = []
"""Processes of runs, of which a test that fails may leave one that trains for half an hour beside all others."""


def make_toy(folder):
    """A folder with a dataset of counting in threes, which is easy to learn, and a plugin that fails on demand."""
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


def end_all():
    """Kill the runs that are left. Their ranks notice, and end."""
    while STARTED:
        process = STARTED.pop()
        process.kill()
        process.wait()


def plan_run(config, save, sets, catalog, resume="must"):
    """Write what `neox train` would have ranks do, and return a run of continued.py: its ranks and this file."""
    plan = prepare_run([config], [f"save={save}", *sets], catalog=catalog, resume=resume).plan
    write_runfile(plan, save / "run.json")
    return plan.cluster.world_size, str(save / "run.json")


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
        STARTED.append(self.process)

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
            with suppress(psutil.NoSuchProcess, KeyError):  # one that has ended, or is none yet
                if "neox_core.run.rank" in child.cmdline():
                    found[int(child.environ()["RANK"])] = child
        return found

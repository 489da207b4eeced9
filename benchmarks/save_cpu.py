"""Saves while training continues, against saves that training waits for.

    python benchmarks/save_cpu.py FOLDER [--megabytes 61] [--kills 200] [--rows]

One rank of the engine `plain` trains a model with Adam, 5 M parameters for 61 MB a checkpoint, and saves in turns with
and without `checkpoint: {background: true}`: for how long training stands still, and when the checkpoint is complete.
With `--kills` a small run that saves after every step is instead killed with SIGKILL so often, each time at a random
moment of a background write, and resumed; it has to end on the bits of a run that was never killed. With `--rows` the
numbers are appended to benchmarks/results.csv.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import torch
from attrs import evolve
from neox_author.testing.plans import example_plan
from results import append_row

from neox_core.checkpoint.checkpointer import find_checkpoint
from neox_core.checkpoint.read import CheckpointReader
from neox_core.plan.runfile import RunPlan

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "unit" / "checkpoint"))

from checkpoint_runs import ADAM, CAUSAL_LM, LINEAR, Run, resuming

WARM, TURNS, WIDTH_OF_MB = 1, 7, 2459
KILLED_WIDTH, KILLED_STEPS = 20_000, 400


def planned(folder: Path, name: str, **checkpoint: Any) -> RunPlan:
    plan = example_plan(folder / name, ranks=(1,))
    return evolve(
        plan,
        objective=CAUSAL_LM,
        engine_component=evolve(plan.engine_component, name="plain"),
        optim=evolve(plan.optim, optimizer=ADAM, schedule=LINEAR, weight_decay=0.1),
        engine={},
        checkpoint=evolve(plan.checkpoint, save=str(folder / name), keep_last=1, **checkpoint),
        plugins={"neox-adam": "0.1.0", "neox-lr": "0.1.0"},
    )


def stalls(folder: Path, megabytes: int) -> dict[str, list[float]]:
    """Seconds of each turn, by what was measured."""
    plans = {name: planned(folder, name, background=name == "background") for name in ("waiting", "background")}
    runs = {name: Run(plan, width=megabytes * WIDTH_OF_MB).steps(1) for name, plan in plans.items()}
    runs["background"].checkpointer.attend(print)  # as the loop does after each step
    time.sleep(1)  # a step or two of a real run
    found: dict[str, list[float]] = {"waiting": [], "background": [], "complete": [], "busy": [], "first": []}
    for turn in range(WARM + TURNS):
        for name, run in runs.items():
            run.steps(1)
            began, busy = time.perf_counter(), time.thread_time()
            run.checkpointer.save(run.state)
            stopped, busy = time.perf_counter() - began, time.thread_time() - busy
            run.checkpointer.wait()
            print(f"{name}: {stopped:.3f} s, {time.perf_counter() - began:.3f} s", file=sys.stderr, flush=True)
            if turn >= WARM:
                found[name].append(stopped)
            elif turn == 0 and name == "background":
                found["first"].append(stopped)
            if name == "background" and turn >= WARM:
                found["complete"].append(time.perf_counter() - began)
                found["busy"].append(busy)
    runs["background"].checkpointer.close()
    return found


def kills(folder: Path, count: int, seed: int) -> tuple[int, int]:
    """How many kills hit a run, and during how many of them a checkpoint was being written."""
    whole = Run(planned(folder, "whole", background=True), width=KILLED_WIDTH)
    plan, draw = planned(folder, "killed", background=True), random.Random(seed)
    save = Path(plan.checkpoint.save or "")
    hit = writing = 0
    while hit < count:
        last = KILLED_STEPS + hit * 2  # so that the run does not end before it was killed so often
        child = forked(plan, last)
        time.sleep(0.1)
        began = time.monotonic()
        while not list(save.glob(".step-*.tmp")) and time.monotonic() - began < 10:
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.06))
        writing += bool(list(save.glob(".step-*.tmp")))
        os.kill(child, signal.SIGKILL)
        hit += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        found = find_checkpoint(save)
        if found is not None:
            CheckpointReader(found).verify()
    found = find_checkpoint(save)
    last = (0 if found is None else int(found.name.removeprefix("step-"))) + 10
    code = os.waitstatus_to_exitcode(os.waitpid(forked(plan, last), 0)[1])
    whole.steps(last).checkpointer.save(whole.state)
    whole.checkpointer.wait()
    names = [path.name for path in (save / f"step-{last:08d}").glob("*.safetensors")]
    pairs = [
        [Path(folder, run, f"step-{last:08d}", name).read_bytes() for run in ("whole", "killed")] for name in names
    ]
    if code or len(names) != 3 or any(first != second for first, second in pairs):
        sys.exit(f"the killed run ended with {code}, on other bits")
    whole.checkpointer.close()
    return hit, writing


def forked(plan: RunPlan, last: int) -> int:
    child = os.fork()
    if child == 0:
        train(resuming(plan, resume="auto"), last)
    return child


def train(plan: RunPlan, last: int) -> NoReturn:
    torch.set_num_threads(1)
    run = Run(plan, width=KILLED_WIDTH)
    run.load()
    while run.state.step < last:
        run.steps(1).checkpointer.save(run.state)
    run.checkpointer.wait()
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--megabytes", type=int, default=61)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", action="store_true")
    args = parser.parse_args()
    shutil.rmtree(args.folder, ignore_errors=True)
    args.folder.mkdir(parents=True)
    row = append_row if args.rows else print
    if args.kills:
        torch.set_num_threads(1)
        hit, writing = kills(args.folder, args.kills, args.seed)
        row("save_cpu", "kills, each resumed, bit-equal end", "kills", [hit])
        row("save_cpu", "kills while a checkpoint was being written", "kills", [writing])
        return
    found, size = stalls(args.folder, args.megabytes), f"{args.megabytes} MB"
    row("save_cpu", f"{size}: training waits for the save", "s", found["waiting"])
    row("save_cpu", f"{size}: save in the background, training stands still", "s", found["background"])
    row("save_cpu", f"{size}: save in the background, until complete", "s", found["complete"])
    row("save_cpu", f"{size}: save in the background, processor time of the standstill", "s", found["busy"])
    shares = [100 * stopped / whole for stopped, whole in zip(found["background"], found["waiting"], strict=True)]
    row("save_cpu", f"{size}: standstill of a save in the background, of one that waits", "%", shares)
    row("save_cpu", f"{size}: first save in the background, training stands still", "s", found["first"])
    shutil.rmtree(args.folder)


if __name__ == "__main__":
    main()

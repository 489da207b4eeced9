"""Launches, one after the other: `python drive.py '[{"ranks": 2, "port": P, "files": [...], "kill_after": null}]'`.

The ranks of a launch are processes of their own, which do its runs one after the other. Each run leaves, in its
run_dir, what its first rank saw: `seen.json`, with the loss of every step.
"""

import hashlib
import json
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from forks import forked
from layouts import warm_up
from neox_gpt.architecture import GPTArchitecture
from neox_gpt.build import build_model
from torch import Tensor

from neox_core.checkpoint.checkpointer import Checkpointer
from neox_core.checkpoint.rng import seed_rank
from neox_core.contracts.engine import Engine
from neox_core.data.batches import build_batches
from neox_core.data.tokenizer import padded_vocab
from neox_core.parallel.context import build_context
from neox_core.parallel.groups import build_groups
from neox_core.plan.runfile import RunPlan, read_runfile
from neox_core.run.loop import train
from neox_core.run.optimizer import build_optimizer


class Losses:
    """A report that keeps the losses and says nothing."""

    def __init__(self) -> None:
        self.kept: dict[int, float] = {}
        self.rates: list[float] = []

    def step(self, step: int, loss: Tensor, lr: float, engine: Engine) -> None:
        self.kept[step] = float(loss)
        self.rates.append(lr)

    def validation(self, step: int, losses: Sequence[Tensor]) -> float:
        return float(torch.stack(list(losses)).mean())

    def check(self) -> None: ...

    def say(self, message: str) -> None: ...


class Fate:
    """Nobody stops the run; KILL_AFTER=5 in the environment has the rank killed between the steps 5 and 6."""

    def __init__(self, first_step: int) -> None:
        self.step = first_step

    def poll(self) -> bool:
        self.step += 1
        if os.environ.get("KILL_AFTER") == str(self.step):
            os.kill(os.getpid(), signal.SIGKILL)
        return False


def run(plan: RunPlan) -> None:
    groups = build_groups(plan.cluster)
    context = build_context(plan, groups, int(os.environ["LOCAL_RANK"]))
    seed_rank(plan.train.seed, dist.get_rank(), context.device)
    model = build_model(plan.model, padded_vocab(plan.model, None), context)
    optimizer = build_optimizer(plan.optim, model, groups.data, GPTArchitecture.tables)
    engine = plan.engine_component.load()[0](plan).build(model, optimizer, context)
    checkpointer = Checkpointer(plan, engine, context)
    resumed = checkpointer.load()
    place = {"data_rank": groups.data_rank, "data_size": groups.data_size}
    batches = build_batches(plan, "train", first_step=resumed.state.step, **place)
    report = Losses()
    train(
        engine,
        batches,
        lambda: build_batches(plan, "valid", first_step=0, **place),
        resumed.schedule,
        report,
        checkpointer,
        Fate(resumed.state.step),
        resumed.state,
        plan,
    )
    if dist.get_rank() == 0:
        seen = {"losses": report.kept, "rates": report.rates, "notes": resumed.notes, "optimizer": _kind(engine)}
        seen |= {"skipped": engine.skipped_steps(), "norm": engine.grad_norm()}
        Path(plan.run_dir, "seen.json").write_text(json.dumps(seen))
    engine.close()


def _kind(engine: Engine) -> str:
    return "replicated" if all(shard.whole for shard in engine.shards) else "sharded"


def rank_main(rank: int, launch: dict[str, Any]) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(launch["ranks"])}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(launch["port"])}
    if launch["kill_after"] is not None:
        os.environ["KILL_AFTER"] = str(launch["kill_after"])
    dist.init_process_group("gloo")
    for file in launch["files"]:
        run(read_runfile(Path(file), hashlib.sha256(Path(file).read_bytes()).hexdigest()))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    warm_up()
    from deepspeed.runtime.swap_tensor import optimizer_utils, partitioned_param_swapper

    for module in (optimizer_utils, partitioned_param_swapper):
        module.MIN_AIO_BYTES = 0  # else it offloads nothing to files that is smaller than 1 MiB

    for launch in json.loads(sys.argv[1]):
        children = [forked(partial(rank_main, rank, launch)) for rank in range(launch["ranks"])]
        ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        wanted = 0 if launch["kill_after"] is None else -signal.SIGKILL
        if ended != [wanted] * len(children):
            sys.exit(f"ranks ended with {ended}, not {wanted}: {launch}")
    sys.stdout.flush()
    os._exit(0)  # without what libraries say of themselves when they are torn down


if __name__ == "__main__":
    main()

"""Tiny models trained in several layouts, one after the other: `python layouts.py OUT {RANKS: CASES}` in JSON.

Each case is a dict: its name, what of the model, the layout and the optimizer differs from the form that it names, and
optionally a checkpoint to start from, and a step to save at besides the last. It leaves OUT/<ranks>/<name>: checkpoints
and `losses.json`: the mean loss of each step over the samples of the step, as the first rank knows it, and how many
numbers of the optimizer's state each rank has held.
"""

import contextlib
import faulthandler
import gc
import json
import os
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from attrs import evolve
from layout_components import (
    ACTIVATIONS,
    COMPRESSION,
    CONSTANT,
    CURRICULUM,
    LORA,
    MIXERS,
    NORMS,
    POSITIONS,
    SEQ,
    SPARSE,
    WHOLE,
    chosen_optimizer,
)
from neox_deepspeed import api as deepspeed
from neox_deepspeed import balance
from neox_deepspeed.api import build_stage, recompute_by_deepspeed
from neox_deepspeed.silence_deepspeed import quiet_engine
from neox_gpt.architecture import GPTArchitecture
from neox_gpt.build import build_decoder_stage, build_model
from neox_gpt.testing import example_run
from neox_plain import api as plain
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from neox_core.checkpoint.checkpointer import Checkpointer
from neox_core.data.curriculum import build_curriculum
from neox_core.parallel.context import build_context
from neox_core.parallel.groups import Groups, build_groups
from neox_core.plan.runfile import ComponentRef, Host, PrecisionPlan, RecomputePlan, RunPlan
from neox_core.run.metrics import Metrics
from neox_core.run.optimizer import build_optimizer

VOCAB, EOD, SAMPLES = 64, 3, 8
LR, CLIPPING = 0.003, 0.5
ENGINES = {"deepspeed": deepspeed.build_engine, "plain": plain.build_engine}
STEPS = 4


# What ranks would each import by themselves, once forked.
WARM = (
    "deepspeed",
    "deepspeed.runtime.zero.stage_1_and_2",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.pipe.engine",
    "torch._dynamo",
)


def make_plan(case: dict[str, Any], out: Path, world: int) -> RunPlan:
    """The plan of a case over `world` ranks. The batch of a step is SAMPLES, whatever the layout."""
    case = dict(case)
    tensor, pipe, zero = case.pop("tensor", 1), case.pop("pipe", 1), case.pop("zero", 0)
    accumulation, dtype, autocast = case.pop("accumulation", 1), case.pop("dtype", "fp32"), case.pop("autocast", None)
    data = world // (tensor * pipe)
    micro_batch = SAMPLES // (accumulation * data)
    plan = example_run(Path(out), ranks=(1,))
    chosen = {
        kind: ComponentRef(kind, name, "neox-test", "0", *table[name])
        for kind, table in (("norm", NORMS), ("activation", ACTIVATIONS), ("position", POSITIONS))
        for name in [case.pop(kind, next(iter(table)))]
    }
    cluster = evolve(
        plan.cluster,
        hosts=(Host("localhost", world),),
        tensor_parallel=tensor,
        pipeline_parallel=pipe,
        sequence_parallel=case.pop("sequence_parallel", False),
        partition=case.pop("partition", "type:transformer"),
    )
    layouts = tuple(
        ComponentRef("sparse layout", name, "neox-test", "0", *SPARSE[name], {"block": 2, **settings})
        for name, settings in case.pop("layouts", {}).items()
    )
    mixers = MIXERS if case.pop("mixers", False) else {}
    name, load, finetune = case.pop("name"), case.pop("load", None), case.pop("finetune", False)
    if "lora" in case:
        case["changes"] = (evolve(LORA, settings={"lora": {"enabled": True, **case.pop("lora")}}),)
    if "compression" in case:
        case["changes"] = (evolve(COMPRESSION, settings={"compression_training": case.pop("compression")}),)
    optimizer = chosen_optimizer(case.pop("optimizer", None), case.pop("optimizer_settings", {}))
    lr = case.pop("lr", LR)
    curriculum = CURRICULUM if case.pop("curriculum", False) else None
    if "recompute" in case:
        case["recompute"] = RecomputePlan(**case["recompute"])
    steps = case.pop("steps", STEPS)
    if "objective" in case:
        plan = evolve(plan, objective=ComponentRef("objective", "test", "neox-test", "0", case.pop("objective")))
    if "feed_forwards" in case:
        case["feed_forwards"] = tuple(
            ComponentRef("feed forward", f"test{place}", "neox-test", "0", *([told] if isinstance(told, str) else told))
            for place, told in enumerate(case["feed_forwards"])
        )
    engine: dict[str, Any] = {
        "train_batch_size": SAMPLES,
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": CLIPPING,
        "zero_optimization": {
            "stage": zero,
            "overlap_comm": False,
            "allgather_partitions": not case.pop("owned", False),
        },
        "zero_allow_untested_optimizer": True,
    }
    if "counts" in case:
        engine["gradient_norm_counts"] = case.pop("counts")
    if dtype == "bf16":
        engine["bf16"] = {"enabled": True}
    model = evolve(
        plan.model,
        **{
            "num_layers": 2,
            "hidden_size": 32,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "seq_length": SEQ,
            "max_position_embeddings": SEQ,
            "padded_vocab_size": VOCAB,
            "layouts": layouts,
            **chosen,
            **mixers,
            **case,
        },
    )
    return evolve(
        plan,
        model=model,
        curriculum=curriculum,
        engine=engine,
        cluster=cluster,
        precision=PrecisionPlan(dtype, autocast),
        batch=evolve(
            plan.batch,
            micro_batch=micro_batch,
            gradient_accumulation=accumulation,
            data_parallel=data,
            train_batch=SAMPLES,
        ),
        optim=evolve(
            plan.optim,
            optimizer=optimizer,
            schedule=CONSTANT,
            weight_decay=0.1,
            gradient_clipping=CLIPPING,
            zero_stage=zero,
            whole_parameters=optimizer.name in WHOLE,
            lr=lr,
        ),
        train=evolve(plan.train, train_iters=steps),
        checkpoint=evolve(plan.checkpoint, save=str(out / name), load=load, finetune=finetune),
    )


def batches(plan: RunPlan, groups: Groups, first_step: int, curriculum: Any) -> Iterator[Tensor]:
    """The micro-batches of this rank: sample k of a step is the same in every layout."""
    micro_batch = plan.batch.micro_batch
    for step in range(first_step, plan.train.train_iters):
        samples = torch.randint(VOCAB // 4, (SAMPLES, SEQ + 1), generator=torch.Generator().manual_seed(step))
        for micro_step in range(plan.batch.gradient_accumulation):
            first = (micro_step * groups.data_size + groups.data_rank) * micro_batch
            length = SEQ if curriculum is None else curriculum.sequence_length(step)
            yield samples[first : first + micro_batch, : length + 1]


class Sent(TorchDispatchMode):
    """How many bytes this rank gives to collectives, by collective."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            name = func._schema.name.removeprefix("c10d::")
            given = args[0] if name in ("allreduce_", "broadcast_") else args[1]
            self.bytes[name] += sum(each.nbytes for each in tree_leaves(given))
        return func(*args, **(kwargs or {}))


def run_case(case: dict[str, Any], out: Path) -> None:
    world, counted, save_at = dist.get_world_size(), case.pop("counted", False), case.pop("save_at", None)
    compiled, build_engine = case.pop("compiled", False), ENGINES[case.pop("engine", "deepspeed")]
    seconds = case.pop("seconds", None)
    plan = make_plan(case, out, world)
    plan = evolve(plan, model=evolve(plan.model, compile=compiled))
    if isinstance(seconds, float):  # of the output layer, the last of the row; each other layer takes one
        seconds = [*[1.0] * (plan.model.num_layers + 2), seconds]
    groups = build_groups(plan.cluster)
    context = build_context(plan, groups, local_rank=0)
    recompute = plan.model.recompute
    by = recompute_by_deepspeed if recompute is not None and recompute.deepspeed else None
    # The backend is whole but for the last part, which makes code of the graphs.
    how: dict[str, Any] = {"eod": EOD, "recompute_by": by, "backend": "aot_eager"}
    if groups.pipe_size > 1:
        found = {"return_value": (seconds, [True] * len(seconds))} if seconds else {"wraps": balance._measure}
        with mock.patch.object(balance, "_measure", **found):
            model = build_decoder_stage(plan, VOCAB, context, build_stage, **how)
    else:
        model = build_model(plan.model, VOCAB, context, **how)
    curriculum = build_curriculum(plan)
    engine = build_engine(
        plan, model, build_optimizer(plan.optim, model, groups.data, GPTArchitecture.tables), context, curriculum
    )
    checkpointer = Checkpointer(plan, engine, context)
    state = checkpointer.load().state
    stream, losses, norms, sent = batches(plan, groups, state.step, curriculum), [], [], []
    metrics, measured = Metrics(engine, {}, model, context), []
    while state.step < plan.train.train_iters:
        wire = Sent() if counted else contextlib.nullcontext()
        with wire:
            loss = engine.train_step(stream, plan.optim.lr).detach().clone()
        sent.append(dict(wire.bytes) if isinstance(wire, Sent) else {})
        dist.all_reduce(loss)
        losses.append(float(loss) / world)
        norms.append(engine.grad_norm())
        measured.append(metrics.read())
        state.advance(plan)
        if state.step == save_at:
            checkpointer.save(state)
    held_out = torch.randint(VOCAB, (4, SEQ + 1), generator=torch.Generator().manual_seed(99))
    (valid,) = engine.evaluate([held_out])
    measured_there = metrics.of_evaluation()
    checkpointer.save(state)
    engine.close()
    mine = sum(each.numel() for each in tree_leaves(dict(engine.optimizer.state)) if isinstance(each, Tensor))
    held = [0] * world
    dist.all_gather_object(held, mine)
    if dist.get_rank() == 0:
        told = {
            "losses": losses,
            "norms": norms,
            "valid": float(valid),
            "metrics": measured,
            "valid_metrics": measured_there,
            "notes": getattr(engine, "notes", ()),
            "stages": getattr(engine, "stages", ()),
            "sent": sent,
            "held": held,
        }
        (out / case["name"] / "losses.json").write_text(json.dumps(told))


Act = Callable[[dict[str, Any], Path], None]


def rank_main(rank: int, world: int, out: Path, cases: list[dict[str, Any]], act: Act = run_case) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": "0"}
    for case in cases:
        if rank == 0:
            os.write(2, f"{world} ranks: {case['name']}\n".encode())
        store = f"file://{out}/.store-{case['name']}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
        act(case, out)
        gc.collect()  # an engine in a circle of objects would keep its groups
        # a thread of each of gloo's wakes 100 times a second; DeepSpeed, where it was used, has to know
        (import_module("deepspeed.comm") if import_module("deepspeed.comm.comm").cdb else dist).destroy_process_group()
        gc.freeze()  # what is there by now stays; DeepSpeed collects often


def run_ranks(world: int, out: Path, cases: list[dict[str, Any]], act: Act = run_case) -> None:
    """One group of processes, forked so that they need not import anything again."""
    out.mkdir()
    children = []
    for rank in range(world):
        child = os.fork()
        if not child:
            code = 1
            try:
                rank_main(rank, world, out, cases, act)
                code = 0
            finally:
                if code:
                    traceback.print_exc()
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    for _ in range(world):
        child, status = os.wait()
        children.remove(child)
        if status:
            for other in children:
                os.kill(other, signal.SIGKILL)
            sys.exit(f"a rank of {world} failed")


def warm_up() -> None:
    """Import for all ranks that are forked from here, on one thread each."""
    faulthandler.register(signal.SIGUSR1)  # where a rank hangs: conftest.py asks
    torch.set_num_threads(1)
    os.environ["DS_ACCELERATOR"] = "cpu"
    quiet_engine(debug=False)
    for module in WARM:
        import_module(module)
    cpuinfo = import_module("cpuinfo")
    cpuinfo.get_cpu_info = cache(cpuinfo.get_cpu_info)  # DeepSpeed asks for it whenever it makes an Adam: a second
    gc.collect()
    gc.freeze()


def main() -> None:
    warm_up()
    out, cases = Path(sys.argv[1]), json.loads(sys.argv[2])
    sys.path.append(str(out))
    for world, some in cases.items():
        run_ranks(int(world), out / world, some)
    sys.stdout.flush()
    os._exit(0)  # gloo's threads, and what libraries say of themselves when they are torn down


if __name__ == "__main__":
    main()

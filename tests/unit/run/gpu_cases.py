"""Steps on a pretended GPU: `python gpu_cases.py LIBRARY FOLDER [WORD]` prints a JSON object, case -> list of faults.

LIBRARY is pretended_gpu.cpp, compiled. WORD: only the cases that it is in. Of a pipeline only the first stage is here:
DeepSpeed's others are sent the shapes of what they get, and the collectives here send nothing.
"""

import contextlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pretended_gpu import DEVICE, apply, attention, gpu, innermost, pretend_cuda, theirs  # isort: skip  # before torch

import torch
import torch.distributed as dist
from attrs import evolve
from neox_gpt.architecture import GPTArchitecture
from neox_gpt.attention import flex
from neox_gpt.build import build_model
from neox_gpt.config.plan import GPTPlan
from neox_gpt.testing import example_run
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from neox_core.checkpoint.resume import RunSchedule
from neox_core.contracts.engine import Peak
from neox_core.contracts.host import RunInfo
from neox_core.hooks.component import load_path
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups, build_groups
from neox_core.parallel.row import Routing
from neox_core.parallel.sample_keys import sample_keys
from neox_core.plan.runfile import ComponentRef, RecomputePlan
from neox_core.plan.stored.state import TrainState
from neox_core.run.loop import train
from neox_core.run.report import Report


def ref(kind: str, target: str, settings: str | None = None, **values: Any) -> ComponentRef:
    return ComponentRef(kind, target.rpartition(":")[2], "neox-test", "0", target, settings, values)


ROTARY = ref("position", "neox_positions.rotary:Rotary", "neox_positions.settings:RotarySettings", rotary_pct=0.5)
ALIBI = ref("position", "neox_positions.alibi:Alibi")
RELATIVE = ref("position", "neox_positions.rpe:RelativeBias", "neox_positions.settings:RelativeSettings")
BLOCKS = "neox_sparse_attention.settings:BigBirdSettings"
SPARSE = ref("sparse layout", "neox_sparse_attention.bigbird:bigbird", BLOCKS, block=8)
ADAM = ref("optimizer", "neox_adam.optim:adam", "neox_adam.settings:AdamSettings")
PLAN = example_run(Path("unused"), ranks=(1,), device="cuda")
PLAIN = evolve(
    PLAN.model,
    num_layers=1,
    hidden_size=32,
    num_attention_heads=4,
    intermediate_size=64,
    seq_length=24,
    max_position_embeddings=24,
    norm=ref("norm", "neox_norms.layernorm:LayerNorm", "neox_norms.settings:LayerNormSettings"),
    activation=ref("activation", "neox_activations.gelu:Gelu"),
    position=ROTARY,
)
LLAMA = evolve(
    PLAIN,
    norm=ref("norm", "neox_norms.rmsnorm:RMSNorm", "neox_norms.settings:RMSNormSettings"),
    activation=ref("activation", "neox_activations.gated:SwiGLU"),
    num_kv_heads=2,
    tie_embeddings=False,
)
DOCUMENTS = {"reset_attention_mask": True, "reset_position_ids": True, "eod_mask_loss": True}
ZERO_1, ZERO_2 = ({"zero_optimization": {"stage": stage}} for stage in (1, 2))
ZERO_3 = {"zero_optimization": {"stage": 3}}
FP16 = {"fp16": {"enabled": True}}
DEEPSPEED, PLAIN_ENGINE = "neox_deepspeed.api:build_engine", "neox_plain.engine:build_engine"
DROPOUT = {"hidden_dropout": 0.1, "attention_dropout": 0.1}


TWO_SHARE = {"tensor_parallel": 2, "sequence_parallel": True}


@contextlib.contextmanager
def ranks(**layout: Any) -> Iterator[Groups]:
    """The groups of the first of as many ranks as a layout has. Their collectives leave tensors as they are."""
    cluster = evolve(PLAN.cluster, hosts=(evolve(PLAN.cluster.hosts[0], slots=layout.pop("number")),), **layout)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=cluster.world_size)
    try:
        yield build_groups(cluster)
    finally:
        dist.destroy_process_group()
        for name, value in vars(sys.modules.get("deepspeed.utils.groups", object)).items():
            if isinstance(value, dist.ProcessGroup):  # kept from one initialization to the next
                setattr(sys.modules["deepspeed.utils.groups"], name, None)


def step_of(plan: GPTPlan, *, recompute: bool = False, routed: bool = False, **layout: Any) -> list[str]:
    """The faults of a forward and backward pass."""
    with ranks(**{"number": layout.get("tensor_parallel", 1), **layout}) as groups, gpu() as device:
        plan = evolve(plan, recompute=RecomputePlan(1) if recompute else None)
        model = build_model(plan, 16, BuildContext(DEVICE, torch.bfloat16, groups, 1), eod=0)
        routing = Routing(frozenset({0}), 3, 12) if routed else None
        device.faults.clear()
        batch = torch.zeros(2, 25, dtype=torch.int64).pin_memory().to(DEVICE, non_blocking=True)
        keys = sample_keys(1, 0, 2, DEVICE) if plan.hidden_dropout else None
        model.loss(batch[:, :-1], batch[:, 1:], keys, routing=routing).backward()
        away = (name for name, each in model.named_parameters() if each.grad is None or each.grad.device != DEVICE)
        return device.faults + [f"{name} has no gradient on the device" for name in away]


def compressed_step() -> list[str]:
    """The faults of 1-bit Adam's second step that compresses: the first may look at what has been counted."""
    from neox_onebit.adam import OneBitAdam
    from neox_onebit.settings import OneBitAdamSettings

    wire: Any = SimpleNamespace(rank=0, size=2, swap=lambda parts: parts, gather=lambda part: torch.stack((part, part)))
    settings = OneBitAdamSettings(freeze_step=1, cuda_aware=True, comm_backend_name="nccl")
    with gpu() as device:
        weights = [torch.zeros(size, device=DEVICE) for size in ((5, 160), (160,), (7,))]
        optimizer = OneBitAdam([{"params": weights}], settings, wire)
        for _ in range(3):
            device.faults.clear()
            for weight in weights:
                weight.grad = torch.ones_like(weight)
            optimizer.step()
        return device.faults


class Saver:
    def save(self, state: TrainState) -> None:
        """Nothing is saved."""


class Never:
    def poll(self) -> bool:
        return False


def agree_alone() -> None:
    """At ZeRO 3 DeepSpeed compares lists among ranks while it learns the order of parameters, in the first step."""
    from deepspeed.runtime.zero import partition_parameters, partitioned_param_coordinator, stage3

    for module in (partition_parameters, partitioned_param_coordinator, stage3):
        module.assert_ints_same_as_other_ranks = lambda ints: None


def loop_of(
    folder: Path, model: GPTPlan, engine: Mapping[str, Any] | None = None, *, build: str = DEEPSPEED, **layout: Any
) -> list[str]:
    """The faults of a run of three steps that looks at the second, outside of that look, and of an evaluation:
    DeepSpeed's engine and all. engine: keys of its JSON, ZeRO or fp16, none for a pipeline: its own waits then do not
    count; by default ZeRO stage 0 in fp32, which has none. build: of the engine that runs it.
    """
    os.environ |= {"LOCAL_RANK": "0", "DS_ACCELERATOR": "cuda"}
    with ranks(**{"number": 1, **layout}) as groups, gpu() as device:
        pretend_cuda(device)
        train_batch = 4 * groups.data_size
        sizes = {"train_batch_size": train_batch, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}
        plan = evolve(
            PLAN,
            model=model,
            batch=evolve(
                PLAN.batch,
                micro_batch=2,
                gradient_accumulation=2,
                train_batch=train_batch,
                data_parallel=groups.data_size,
            ),
            optim=evolve(PLAN.optim, optimizer=ADAM, weight_decay=0.1),
            train=evolve(PLAN.train, train_iters=3),
            engine={
                **sizes,
                "zero_optimization": {"stage": 0},
                **(engine or {}),
                "zero_allow_untested_optimizer": True,
            },
        )
        agree_alone()
        from neox_core.run.optimizer import build_optimizer

        context = BuildContext(DEVICE, torch.float32, groups, 1)
        if groups.pipe_size > 1:
            from neox_deepspeed.pipeline import build_stage
            from neox_gpt.build import build_decoder_stage

            built = build_decoder_stage(plan, 16, context, build_stage, eod=0)
        else:
            built = build_model(plan.model, 16, context, eod=0)
        running = load_path(build)(
            plan, built, build_optimizer(plan.optim, built, None, GPTArchitecture.tables), context
        )
        info = RunInfo(
            folder, 0, 6, num_parameters=1, num_ranks=1, tokens_per_step=96, device="cuda", samples_per_step=4
        )
        look: dict[str, Any] = {
            "log_interval": 2,
            "flops_per_token": 1.0,
            "peak": Peak(None, ""),
            "stop_on_nonfinite": True,
        }
        report, seen = Report(info, [], groups, DEVICE, **look), []

        def batches() -> Iterator[Tensor]:
            while True:
                yield torch.zeros(2, 25, dtype=torch.int64)

        def lr(step: int) -> float:  # called as a step begins
            seen.append(len(device.faults))
            return 1e-3

        report.check = lambda: seen.append(len(device.faults))  # type: ignore[method-assign]  # as the last step is done
        schedule = RunSchedule(lr, lr, plan.optim.schedule)
        train(running, report.timed(batches()), list, schedule, report, Saver(), Never(), TrainState(), plan)
        began, end = seen[:-1], seen[1:]  # of each step
        first, looked, last = (device.faults[at:to] for at, to in zip(began, end, strict=True))
        device.faults.clear()
        running.evaluate(islice(batches(), 2))
        running.close()
        faults = [each for each in first + last + device.faults if engine is None or not theirs(each)]
        return faults + ([] if looked else ["the look read nothing"])


def fault_of(commit: Callable[[Tensor], object]) -> list[str]:
    """What is seen of a planted fault, done with a tensor on the device."""
    with gpu() as device:
        with contextlib.suppress(RuntimeError):  # fake tensors know no sizes, and refuse to mix devices themselves
            commit(torch.zeros(3, device=DEVICE))
        return [each.partition(" at ")[0] for each in device.faults]


CASES: dict[str, Callable[[], list[str]]] = {
    "documents and a bias": lambda: step_of(evolve(LLAMA, position=ALIBI, **DOCUMENTS)),
    "dropout, recomputed, some tokens": lambda: step_of(evolve(PLAIN, **DROPOUT), recompute=True, routed=True),
    "blocks and a trained bias": lambda: step_of(
        evolve(LLAMA, position=RELATIVE, layouts=(SPARSE,), layout_of_layer=(0,))
    ),
    "1-bit Adam": compressed_step,
    "two ranks share layers, documents and a bias": lambda: step_of(
        evolve(LLAMA, position=ALIBI, **DOCUMENTS), tensor_parallel=2
    ),
    "two ranks share layers and positions, dropout, recomputed": lambda: step_of(
        evolve(PLAIN, **DROPOUT), recompute=True, **TWO_SHARE
    ),
    "a run on documents": lambda: loop_of(Path(sys.argv[2]), evolve(PLAIN, **DOCUMENTS)),
    "a run with dropout, recomputed": lambda: loop_of(
        Path(sys.argv[2]), evolve(PLAIN, recompute=RecomputePlan(1), **DROPOUT)
    ),
    "a run on two ranks, each with a model": lambda: loop_of(Path(sys.argv[2]), evolve(PLAIN, **DOCUMENTS), number=2),
    "a run on four ranks, two sharing layers": lambda: loop_of(
        Path(sys.argv[2]), evolve(PLAIN, **DOCUMENTS), number=4, **TWO_SHARE
    ),
    "a run of the plain engine": lambda: loop_of(Path(sys.argv[2]), evolve(PLAIN, **DOCUMENTS), build=PLAIN_ENGINE),
    "a run of the plain engine on two ranks": lambda: loop_of(
        Path(sys.argv[2]), evolve(PLAIN, **DOCUMENTS), build=PLAIN_ENGINE, number=2
    ),
    "a run at ZeRO stage 1": lambda: loop_of(Path(sys.argv[2]), evolve(PLAIN, **DOCUMENTS), ZERO_1, number=2),
    "a run at ZeRO stage 2": lambda: loop_of(Path(sys.argv[2]), evolve(PLAIN, **DOCUMENTS), ZERO_2, number=2),
    "a run at ZeRO stage 3": lambda: loop_of(Path(sys.argv[2]), evolve(PLAIN, **DOCUMENTS), ZERO_3, number=2),
    "a run of the first of two stages": lambda: loop_of(
        Path(sys.argv[2]), evolve(PLAIN, num_layers=2), {}, number=2, pipeline_parallel=2
    ),
    "a run in fp16": lambda: loop_of(Path(sys.argv[2]), evolve(PLAIN, **DOCUMENTS), FP16, number=2),
    "planted: a number": lambda: fault_of(lambda x: x.sum().item()),
    "planted: a branch": lambda: fault_of(lambda x: bool(x.sum() > 0)),
    "planted: to the host": lambda: fault_of(lambda x: x.cpu()),
    "planted: a list": lambda: fault_of(lambda x: torch.tensor([1.0], device=x.device)),
    "planted: from the host": lambda: fault_of(lambda x: torch.ones(3).to(x.device, non_blocking=True)),
    "planted: a choice": lambda: fault_of(lambda x: x[x > 0]),
    "planted: a mask of the host": lambda: fault_of(lambda x: x.masked_fill(torch.ones(3) > 0, 0.0)),
}


def main() -> None:
    torch.cuda._lazy_init = lambda: None
    Tensor.record_stream = lambda *_: None
    nn.Module._apply = apply  # type: ignore[method-assign]  # in a process of its own
    flex.compiled = lambda: attention
    found = {}
    for name, case in CASES.items():
        if len(sys.argv) > 3 and sys.argv[3] not in name:
            continue
        try:
            found[name] = case()
        except Exception as error:  # noqa: BLE001  each case is told of by itself
            found[name] = [f"{error!r:.500} at {innermost(traceback.extract_tb(error.__traceback__))}"]
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()

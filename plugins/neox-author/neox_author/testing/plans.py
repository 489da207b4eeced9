"""A whole plan to test launchers with, made without a config file."""

from collections.abc import Sequence
from pathlib import Path

from neox_core.plan.runfile import (
    BatchPlan,
    CheckpointPlan,
    ClusterPlan,
    ComponentRef,
    DataPlan,
    Host,
    ModelPlan,
    OptimPlan,
    PrecisionPlan,
    RunPlan,
    TrainPlan,
)


def example_plan(run_dir: Path, *, ranks: Sequence[int] = (2,), device: str = "cpu", port: int = 29500) -> RunPlan:
    """A valid plan with `ranks` ranks on each host ("localhost", then "host1" ...). Its components do not exist."""
    cuda = device == "cuda"
    hosts = tuple(Host(f"host{index}" if index else "localhost", slots) for index, slots in enumerate(ranks))
    return RunPlan(
        architecture=_nothing("architecture"),
        objective=_nothing("objective"),
        engine_component=_nothing("engine"),
        model=ModelPlan(
            num_layers=1,
            seq_length=8,
            padded_vocab_size=16,
            make_vocab_size_divisible_by=1,
        ),
        batch=BatchPlan(micro_batch=1, gradient_accumulation=1, data_parallel=sum(ranks), train_batch=sum(ranks)),
        data=DataPlan(None, (1.0, 0.0, 0.0), _nothing("data backend"), None, num_workers=0),
        optim=OptimPlan(
            optimizer=_nothing("optimizer"),
            schedule=_nothing("lr schedule"),
            lr=1e-3,
            min_lr=0.0,
            warmup_steps=0,
            decay_steps=10,
            weight_decay=0.0,
            gradient_clipping=1.0,
            zero_stage=0,
        ),
        precision=PrecisionPlan("fp32", None),
        train=TrainPlan(
            train_iters=10,
            exit_interval=None,
            eval_interval=10,
            eval_iters=0,
            log_interval=1,
            seed=1,
            on_nonfinite_loss="stop",
            max_skipped_steps=40,
            stall_timeout_s=300,
            peak_tflops=None,
            sample_prompt=None,
        ),
        checkpoint=CheckpointPlan(
            save=None,
            save_interval=None,
            load=None,
            resume="must",
            keep_last=None,
            finetune=False,
            load_optimizer=True,
            load_rng=True,
            save_optimizer=True,
            save_rng=True,
            schedule_from="must-match",
        ),
        cluster=ClusterPlan(
            hosts=hosts,
            device="cuda" if cuda else "cpu",
            backend="nccl" if cuda else "gloo",
            master_addr="127.0.0.1",
            master_port=port,
            threads_per_rank=None,
        ),
        launcher=_nothing("launcher"),
        monitors=(),
        engine={},
        plugins={},
        run_dir=str(run_dir),
        neox_version="0.1.0",
    )


def _nothing(kind: str) -> ComponentRef:
    return ComponentRef(kind, "nothing", "nowhere", "0", "nowhere.at_all:Nothing")

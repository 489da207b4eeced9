"""What `neox plan` predicts for published runs, next to what was measured there: `python benchmarks/plan_published.py`.

Narayanan et al. 2021 (arXiv:2104.04473), table 1: A100 of 80 GB, Megatron-LM, interleaved pipelines, recomputation of
all activations, whose FLOPs their figures include. Black et al. 2022 (arXiv:2204.06745), section 3: GPT-NeoX-20B, 96
A100 of 40 GB, counted alike. torchtitan b5bcd76c, benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3: Llama
3.1 8B, fully sharded, compiled, H100 at 500 W, in tokens a second. The micro-batches of table 1 are not published:
those here are the largest that fit into 80 GB by `neox plan`, of at most 4.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

from neox_plan.gpus import GPUS
from neox_plan.layout import parameters_of
from neox_plan.step import step_of

from neox_core.contracts.architecture import ModelSize
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import Resolved, prepare_run

MEGATRON = (  # billions, heads, hidden, layers, tensor, pipeline, GPUs, batch, micro-batch, TFLOP/s of a GPU
    (1.7, 24, 2304, 24, 1, 1, 32, 512, 4, 137),
    (3.6, 32, 3072, 30, 2, 1, 64, 512, 4, 138),
    (7.5, 32, 4096, 36, 4, 1, 128, 512, 4, 142),
    (18.4, 48, 6144, 40, 8, 1, 256, 1024, 4, 135),
    (39.1, 64, 8192, 48, 8, 2, 512, 1536, 4, 138),
    (76.1, 80, 10240, 60, 8, 4, 1024, 1792, 2, 140),
    (145.6, 96, 12288, 80, 8, 8, 1536, 2304, 2, 148),
    (310.1, 128, 16384, 96, 8, 16, 1920, 2160, 1, 155),
    (529.6, 128, 20480, 105, 8, 35, 2520, 2520, 1, 163),
    (1008.0, 160, 25600, 128, 8, 64, 3072, 3072, 1, 163),
)
COMMON: dict[str, Any] = {
    "data-path": "none",
    "train-iters": 1000,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-4}},
    "bf16": {"enabled": True},
    "launcher": "slurm",
    "zero_optimization": {"stage": 1},
}
LLAMA: dict[str, Any] = {
    "num-layers": 32,
    "hidden-size": 4096,
    "num-attention-heads": 32,
    "num-kv-heads": 8,
    "intermediate-size": 14336,
    "activation": "swiglu",
    "norm": "rmsnorm",
    "pos-emb": "rotary",
    "use-bias-in-attn-linear": False,
    "use-bias-in-mlp": False,
    "no-weight-tying": True,
    "seq-length": 8192,
    "max-position-embeddings": 8192,
    "padded-vocab-size": 128256,
    "train_micro_batch_size_per_gpu": 2,
    "zero_optimization": {"stage": 3},
}


def resolve(folder: Path, cluster: str, **keys: Any) -> Resolved:
    (folder / "c.json").write_text(json.dumps(COMMON | keys))
    return prepare_run([folder / "c.json"], catalog=load_plugins(), start=False, cluster=cluster)


def predicted(resolved: Resolved, gpu: str) -> tuple[float, float]:
    """(TFLOP/s of a GPU with what is recomputed, tokens a second of a GPU)."""
    plan = resolved.plan
    assert isinstance(resolved.size, ModelSize)
    step = step_of(plan, resolved.size, parameters_of(resolved, plan), GPUS[gpu])
    tokens = plan.batch.train_batch * plan.model.seq_length / plan.cluster.world_size
    computed = step.flops * (4 / 3 if plan.model.recompute else 1)
    return computed / step.seconds / 1e12, tokens / step.seconds


def row(name: str, published: float, told: float, unit: str) -> None:
    print(f"{name:<38} {published:>8,.0f} {told:>8,.0f} {unit:<9} {100 * (told / published - 1):>+6.1f} %")


def main() -> None:
    print(f"{'run':<38} {'measured':>8} {'told':>8} {'':<9} {'error':>8}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for billions, heads, hidden, layers, tensor, pipeline, gpus, batch, micro, published in MEGATRON:
            shape = {"num-layers": layers, "hidden-size": hidden, "num-attention-heads": heads, "seq-length": 2048}
            shape |= {
                "max-position-embeddings": 2048,
                "padded-vocab-size": 51200,
                "train_micro_batch_size_per_gpu": micro,
            }
            shape |= {"model-parallel-size": tensor, "pipe-parallel-size": pipeline, "checkpoint-activations": True}
            resolved = resolve(folder, f"{gpus // 8}x8", **shape, train_batch_size=batch)
            run = f"Megatron-LM {billions:g} B, {gpus} A100, t{tensor} p{pipeline}"
            row(run, published, predicted(resolved, "A100")[0], "TFLOP/s")
        neox = {"num-layers": 44, "hidden-size": 6144, "num-attention-heads": 64, "seq-length": 2048}
        neox |= {"max-position-embeddings": 2048, "padded-vocab-size": 50432, "train_micro_batch_size_per_gpu": 4}
        neox |= {"model-parallel-size": 2, "pipe-parallel-size": 4, "checkpoint-activations": True}
        resolved = resolve(folder, "12x8", **neox, gradient_accumulation_steps=32)
        row("GPT-NeoX-20B, 96 A100, t2 p4", 117, predicted(resolved, "A100-40GB")[0], "TFLOP/s")
        for hosts, published in ((1, 6667), (16, 6514)):
            resolved = resolve(folder, f"{hosts}x8", **LLAMA)
            row(f"torchtitan Llama 3.1 8B, {8 * hosts} H100", published, predicted(resolved, "H100")[1], "tokens/s")


if __name__ == "__main__":
    main()

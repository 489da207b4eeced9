"""Short runs of `neox train` on a GPU: they lose what the same model loses on a CPU, and resume to the bit.

`pytest -n 8 tests/gpu/test_runs.py` takes minutes on one GPU. A model is compared with its run on the CPU by the plain
engine in fp32, whatever engine, precision, sharding and kernels the GPU has it with.
"""

import json
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from neox_author.testing.ports import free_port
from toy_runs import NEOX, make_toy

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")

STEPS, HALFWAY = 12, 6
FP32, HALF = 2e-3, 5e-2
"""How far losses of 12 steps may be apart: other orders of sums, and bf16 or fp16."""
PLAIN, DEEPSPEED = "engine=plain", "engine=deepspeed"
CAST, BF16 = "torch_autocast={enabled: true, dtype: bfloat16}", "bf16.enabled=true"
FP16 = "fp16={enabled: true, initial_scale_power: 10}"
BASE = (
    "num_gpus=1",
    "hidden-size=64",
    "num-attention-heads=4",
    "optimizer.params.lr=0.003",
    f"train-iters={STEPS}",
    f"eval-interval={STEPS}",
    f"save-interval={HALFWAY}",
    "log-interval=1",
)
DROPOUT = ("hidden-dropout=0.1", "attention-dropout=0.1")
TEXT = ("tokenizer-type=CharLevelTokenizer", "padded-vocab-size=512")
"""A document ends with each 0, every 20 tokens."""
DOCUMENTS = (*TEXT, "reset-attention-mask=true", "reset-position-ids=true")
SPARSE = ("sparsity=all", "sparse-attention={mode: bigbird, block: 16}", "seq-length=64", "max-position-embeddings=64")
MOE = ("mlp-type=moe", "moe-num-experts=4", "moe-top-k=2")
MODELS: dict[str, tuple[str, ...]] = {
    "rotary": (),
    **{position: (f"pos-emb={position}",) for position in ("alibi", "learned", "rpe")},
    **{norm: (f"norm={norm}",) for norm in ("layernorm", "scalenorm")},
    **{activation: (f"activation={activation}",) for activation in ("swiglu", "geglu", "openai-gelu")},
    "dropout": DROPOUT,
    "documents": DOCUMENTS,
    "documents and alibi": (*TEXT, "reset-attention-mask=true", "pos-emb=alibi"),
    "documents and dropout": (*DOCUMENTS, *DROPOUT),
    "window": ("sliding-window-width=8",),
    "softcap": ("attention-softcap=20.0", "logit-softcap=30.0", "z-loss=1.0e-4"),
    "grouped heads": ("num-kv-heads=2", "qk-norm=all"),
    "blocks": SPARSE,
    "experts": MOE,
    "low rank": ("model-changes=[lora]",),
}


def zero(stage: int, more: str = "") -> str:
    return f"zero_optimization={{stage: {stage}{more}}}"


def triton(*ops: str) -> str:
    return f"kernels={{{', '.join(f'{op}: triton' for op in ops)}}}"


ON_HOST = ", offload_optimizer: {device: cpu, pin_memory: true}"
# model, how the GPU trains it, and how near it comes
WAYS: dict[str, tuple[str, tuple[str, ...], float]] = {
    **{f"zero {stage}": ("rotary", (DEEPSPEED, zero(stage)), FP32) for stage in range(4)},
    **{f"zero {stage} bf16": ("rotary", (DEEPSPEED, BF16, zero(stage)), HALF) for stage in range(4)},
    **{f"zero {stage} fp16": ("rotary", (DEEPSPEED, FP16, zero(stage)), HALF) for stage in (1, 3)},
    "on the host": ("rotary", (DEEPSPEED, BF16, zero(2, ON_HOST)), HALF),
    "all on the host": (
        "rotary",
        (DEEPSPEED, BF16, zero(3, f"{ON_HOST}, offload_param: {{device: cpu, pin_memory: true}}")),
        HALF,
    ),
    "compiled": ("rotary", (PLAIN, "compile=true"), FP32),
    "compiled bf16": ("documents", (DEEPSPEED, BF16, "compile=true"), HALF),
    "recomputed": ("dropout", (DEEPSPEED, "checkpoint-activations=true"), FP32),
    "recomputed by DeepSpeed": (
        "dropout",
        (DEEPSPEED, "checkpoint-activations=true", "deepspeed-activation-checkpointing=true"),
        FP32,
    ),
    "experts by DeepSpeed": ("experts", (DEEPSPEED, BF16, zero(2)), HALF),
    "kernels": ("swiglu", (PLAIN, triton("rms_norm", "rotary_pair", "swiglu", "cross_entropy", "adam_step")), FP32),
    "kernels under autocast": ("swiglu", (PLAIN, CAST, triton("rms_norm", "rotary_pair", "cross_entropy")), HALF),
    "kernels of dropout": ("dropout", (PLAIN, triton("bias_dropout_add", "bias_gelu", "cross_entropy")), FP32),
    "kernel of layer norm": ("layernorm", (DEEPSPEED, BF16, triton("layer_norm", "bias_gelu")), HALF),
    "kernel of blocks": ("blocks", (PLAIN, triton("block_sparse_attention")), FP32),
    "kernel of blocks under autocast": ("blocks", (PLAIN, CAST, triton("block_sparse_attention")), HALF),
    "blocks by FlexAttention": ("blocks", (PLAIN, "kernels={block_sparse_attention: flex}"), FP32),
}
RESUMED: dict[str, tuple[str, ...]] = {
    "plain": (PLAIN,),
    "dropout": (PLAIN, CAST, *DROPOUT),
    "zero 2": (DEEPSPEED, BF16, zero(2)),
    "zero 3": (DEEPSPEED, BF16, zero(3)),
    "fp16": (DEEPSPEED, FP16, zero(1)),
    "host": (DEEPSPEED, BF16, zero(2, ON_HOST)),
    "background": (PLAIN, "checkpoint={background: true}"),
    "compiled": (PLAIN, CAST, "compile=true"),
    "kernels": (PLAIN, CAST, triton("rms_norm", "rotary_pair", "cross_entropy", "adam_step")),
    "blocks": (PLAIN, CAST, *SPARSE, triton("block_sparse_attention")),
    "documents": (PLAIN, CAST, *DOCUMENTS),
}
Train = Callable[..., dict[int, float]]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(make_toy(tmp_path_factory.mktemp("toy")))


@pytest.fixture(scope="module")
def train(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Run `neox train` and return its losses by step; the same run on a CPU is made once."""

    @cache
    def train(*sets: str, save: Path | None = None, more: tuple[str, ...] = ()) -> dict[int, float]:
        folder = save or tmp_path_factory.mktemp("run")
        given = dict(each.split("=", 1) for each in (*BASE, f"master-port={free_port()}", f"save={folder}", *sets))
        argv = [*NEOX, "train", str(toy / "config.yml"), *more]
        argv += [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=500)
        assert done.returncode == 0, done.stdout + done.stderr
        rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
        return {row["step"]: row["loss"] for row in rows if "loss" in row}

    return train


def on_the_cpu(train: Train, model: str) -> list[float]:
    return list(train(PLAIN, "device=cpu", *MODELS[model]).values())


@pytest.mark.parametrize("sets", [(PLAIN,), (PLAIN, CAST)], ids=["fp32", "autocast"])
@pytest.mark.parametrize("model", MODELS)
def test_a_model_loses_what_it_loses_on_a_cpu(train: Train, model: str, sets: tuple[str, ...]) -> None:
    losses = list(train("device=cuda", *MODELS[model], *sets).values())
    assert losses == pytest.approx(on_the_cpu(train, model), abs=HALF if CAST in sets else FP32)
    assert len(losses) == STEPS


@pytest.mark.parametrize("way", WAYS)
def test_so_it_does_by_every_engine_precision_and_kernel(train: Train, way: str) -> None:
    model, sets, within = WAYS[way]
    losses = list(train("device=cuda", *MODELS[model], *sets).values())
    assert losses == pytest.approx(on_the_cpu(train, model), abs=within)
    assert len(losses) == STEPS


@pytest.mark.parametrize("way", RESUMED)
def test_a_resumed_run_ends_with_the_same_bits(train: Train, way: str, tmp_path: Path) -> None:
    sets = ("device=cuda", *RESUMED[way])
    straight = train(*sets, save=tmp_path / "straight")
    train(*sets, f"exit-interval={HALFWAY}", save=tmp_path / "resumed")
    assert train(*sets, save=tmp_path / "resumed", more=("--resume", "auto")) == straight
    ends = [tmp_path / name / f"step-{STEPS:08}" for name in ("straight", "resumed")]
    files = [sorted(each.relative_to(end) for each in end.rglob("*.safetensors")) for end in ends]
    assert files[0] == files[1] != []
    assert [each for each in files[0] if (ends[0] / each).read_bytes() != (ends[1] / each).read_bytes()] == []

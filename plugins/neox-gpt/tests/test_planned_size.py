"""What is told of a model before a start, next to the model that is built: every parameter, and the memory it takes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from neox_gpt.build import build_model, parameter_shapes
from neox_gpt.config.memory import loss_bytes, on_fullest_rank
from neox_gpt.config.size import ModelSize

from neox_core.hooks.loader import load_plugins
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.resolve import Resolved, prepare_run
from neox_core.run.optimizer import build_optimizer

BASE = {
    "num-layers": 4,
    "hidden-size": 48,
    "num-attention-heads": 4,
    "seq-length": 64,
    "max-position-embeddings": 64,
    "padded-vocab-size": 100,
    "data-path": "none",
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
    "train-iters": 10,
    "hidden-dropout": 0,
    "attention-dropout": 0,
    "device": "cpu",
}

SHAPES: dict[str, dict[str, Any]] = {
    "gpt-2": {"pos-emb": "learned", "max-position-embeddings": 80},
    "untied": {"no-weight-tying": True, "pos-emb": "rotary", "gpt-j-residual": True},
    "gated": {"activation": "swiglu", "norm": "rmsnorm", "intermediate-size": 72, "no-weight-tying": True},
    "llama": {
        "activation": "swiglu",
        "norm": "rmsnorm",
        "pos-emb": "rotary",
        "num-kv-heads": 2,
        "use-bias-in-attn-linear": False,
        "use-bias-in-mlp": False,
        "no-weight-tying": True,
    },
    "gpt-j": {"gpt-j-residual": True, "gpt-j-tied": True, "norm": "scalenorm", "pos-emb": "alibi"},
    "rpe": {"pos-emb": "rpe", "rpe-num-buckets": 10},
    "heads of another width": {"pos-emb": "rotary", "head-dim": 16, "num-kv-heads": 2, "qk-norm": "head"},
    "norms of all heads": {"pos-emb": "rotary", "num-kv-heads": 2, "qk-norm": "all", "norm": "rmsnorm"},
    "GPT-NeoX's norm of queries and keys": {"pos-emb": "rotary", "use-qk-layernorm": True},
    "norms around": {"norm-place": "both", "pos-emb": "rotary", "use-bias-in-attn-output": False},
    "norms after": {"norm-place": "after", "no-weight-tying": True, "use-bias-in-head": True},
    "windows": {"sliding-window-width": 16, "attention-config": [[["global", "sliding"], 2]]},
    "sparse": {"sparsity": "interspersed", "sparse-attention": {"mode": "bigbird", "block": 16}},
    "shared layers": {"num-unique-layers": 2, "pos-emb": "sinusoidal", "activation": "geglu"},
}


def resolve(folder: Path, **more: Any) -> Resolved:
    (folder / "c.json").write_text(json.dumps(BASE | {key.replace("_", "-"): value for key, value in more.items()}))
    return prepare_run([folder / "c.json"], catalog=load_plugins(), start=False)


@pytest.mark.parametrize("name", SHAPES)
def test_every_parameter_is_told(tmp_path: Path, name: str) -> None:
    resolved = resolve(tmp_path, **SHAPES[name])
    assert isinstance(resolved.size, ModelSize)
    assert dict(resolved.size.shapes) == parameter_shapes(resolved.plan.model, 100)
    model = build_model(
        resolved.plan.model, 100, BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), 1)
    )
    assert (resolved.size.flops, resolved.size.width) == (model.flops_per_token, 48)


def test_gpt_2_has_its_published_number(tmp_path: Path) -> None:
    """Radford et al. 2019, as OpenAI's small model counts: 124,439,808, its embedding of 50257 rows."""
    keys = {"num-layers": 12, "hidden-size": 768, "num-attention-heads": 12, "max-position-embeddings": 1024}
    resolved = resolve(tmp_path, **keys, **{"padded-vocab-size": 50257, "pos-emb": "learned"})
    assert isinstance(resolved.size, ModelSize)
    assert resolved.size.num_parameters == 124_439_808


@pytest.mark.parametrize("tokenizer", ["GPT2BPETokenizer", "HFTokenizer"])
def test_the_vocabulary_is_read_from_its_files(tmp_path: Path, tokenizer: str) -> None:
    vocab = {f"t{index}": index for index in range(300)} | {"<|endoftext|>": 310}
    content = vocab if tokenizer == "GPT2BPETokenizer" else {"model": {"vocab": vocab}, "added_tokens": [{"id": 320}]}
    (tmp_path / "v.json").write_text(json.dumps(content))
    files = {"vocab-file": str(tmp_path / "v.json")}
    if tokenizer == "GPT2BPETokenizer":
        files["merge-file"] = str(tmp_path / "v.json")
    told = resolve(tmp_path, **files, **{"tokenizer-type": tokenizer, "padded-vocab-size": None}).size
    assert isinstance(told, ModelSize)
    assert told.rows == 384
    (tmp_path / "v.json").write_text("{")
    resolved = resolve(tmp_path, **files, **{"tokenizer-type": tokenizer, "padded-vocab-size": None})
    assert isinstance(resolved.size, ModelSize)
    assert resolved.size.untold == f"the files of tokenizer {tokenizer} do not tell"
    assert resolved.size.num_parameters == told.num_parameters - 384 * 48
    assert resolved.memory is None


@pytest.mark.parametrize(
    ("rows", "method", "layers"),
    [(10_000, "type:transformer", 2), (100, "time", 2), (1000, "time", 3), (10_000, "time", 4)],
)
def test_a_stage_without_the_head_is_expected_to_hold_more_layers(
    tmp_path: Path, rows: int, method: str, layers: int
) -> None:
    """Where the pipeline is cut by time. By products, the head of 1,000 rows is 1.4 layers, that of 10,000 rows 14."""
    cut = {"pipe-partition-method": method, "pipe-parallel-size": 2, "num_gpus": 2, "no-weight-tying": True}
    resolved = resolve(tmp_path, **cut, **{"padded-vocab-size": rows})
    model: Any = resolved.plan.model
    size: Any = resolved.size
    held = on_fullest_rank(resolved.plan, model, size)
    assert {name.split(".")[1] for name in held if name.startswith("layers.")} == {str(each) for each in range(layers)}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("name", ["gpt-2", "untied", "llama"])
def test_memory_is_what_autograd_and_the_optimizer_keep(tmp_path: Path, name: str, dtype: str) -> None:
    """Weights, gradients and state to the byte; activations, of which kernels keep fewer or more, to a quarter."""
    resolved = resolve(tmp_path, **SHAPES[name], bf16={"enabled": dtype == "bf16"})
    plan, told = resolved.plan, resolved.memory
    assert told is not None
    context = BuildContext(
        torch.device("cpu"), getattr(torch, {"fp32": "float32", "bf16": "bfloat16"}[dtype]), Groups(None, None, 0, 1), 1
    )
    model = build_model(plan.model, 100, context)
    tokens = torch.randint(100, (2, 65), generator=torch.Generator().manual_seed(0))
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, torch.nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    hidden = model.hidden(tokens[:, :-1])
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = model.hidden(tokens[:, :-1])
    activations = sum(size for place, size in kept.items() if place not in own)
    hidden.sum().backward()
    weights = sum(each.nbytes for each in model.parameters())
    assert (told.weights, told.gradients) == (weights, weights)
    assert told.masters == (0 if dtype == "fp32" else 2 * weights)
    optimizer = build_optimizer(plan.optim, model.float(), None)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    state = [value for each in optimizer.state.values() for value in each.values() if torch.is_tensor(value)]
    assert told.state == sum(each.nbytes for each in state if each.dim())
    loss = loss_bytes(plan, plan.model, resolved.size)
    assert told.activations - loss == pytest.approx(activations, rel=0.25)

"""What changing a key of a config changes in the model and optimizer that are built from it.

Here are keys of the documents whose effect can be read off what is built; tests/unit/plan/test_effects.py
says where the effect of every other key is tested.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import frozen
from neox_gpt.architecture import GPTArchitecture
from neox_gpt.build import build_model
from neox_gpt.gpt import GPT
from neox_gpt.shape import num_parameters
from torch import Tensor, nn

from neox_core.data.tokenizer import padded_vocab
from neox_core.hooks.loader import load_plugins
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.parallel.sample_keys import sample_keys
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import RunPlan
from neox_core.run.optimizer import build_optimizer

BASE = """
num-layers: 2
hidden-size: 64
num-attention-heads: 4
max-position-embeddings: 32
seq-length: 32
data-path: none
data-impl: mmap
padded-vocab-size: 256
train-iters: 100
train_micro_batch_size_per_gpu: 4
optimizer: {type: Adam, params: {lr: 1e-3}}
hidden-dropout: 0
attention-dropout: 0
"""
LAYER = 12 * 64**2 + 13 * 64
"""Parameters of a layer: 4 x 4 d^2 with their biases and two norms, here of width 64."""
TOKENS = torch.arange(64).view(2, 32) % 200


@frozen
class Built:
    plan: RunPlan
    model: GPT
    optimizer: torch.optim.Optimizer

    @property
    def parameters(self) -> dict[str, Tensor]:
        return dict(self.model.named_parameters())

    def named(self, part: str) -> nn.Module:
        return self.model.get_submodule(part)


def shape(name: str) -> Callable[[Built], Any]:
    return lambda built: tuple(built.parameters[name].shape) if name in built.parameters else None


def spread(name: str) -> Callable[[Built], float]:
    return lambda built: float(built.parameters[name].detach().std())


def group(key: str) -> Callable[[Built], Any]:
    return lambda built: built.optimizer.param_groups[0][key]


def count(built: Built) -> int:
    return num_parameters(built.model)


def kinds(built: Built) -> set[str]:
    return {type(module).__name__ for name, module in built.model.named_modules() if name.endswith("norm")}


def passes_differ(built: Built) -> bool:
    """Whether two passes in training mode, of other samples, differ."""
    built.model.train()
    one, other = (sample_keys(seed, 0, 2, torch.device("cpu")) for seed in (1, 2))
    return not torch.equal(built.model.loss(TOKENS, TOKENS, one), built.model.loss(TOKENS, TOKENS, other))


def decays(built: Built) -> set[tuple[float, bool]]:
    """(decay, whether only vectors have it) of each group of parameters."""
    return {
        (each["weight_decay"], all(one.ndim == 1 for one in each["params"])) for each in built.optimizer.param_groups
    }


def eps(built: Built) -> float:
    return float(built.named("final_norm").eps)


def drawn_from(seed: int) -> Callable[[Built], bool]:
    """Whether the weights are those that `seed` gives, whatever the plan says."""

    def compare(built: Built) -> bool:
        context = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=seed)
        twin = dict(build_model(built.plan.model, 256, context).named_parameters())
        return all(torch.equal(value, twin[name]) for name, value in built.parameters.items())

    return compare


def rows(built: Built) -> int:
    return padded_vocab(built.plan.model, 50257)


# key of the ledger -> (sets for both, set that changes it, what is measured, before, after)
Effect = tuple[tuple[str, ...], tuple[str, ...], Callable[[Built], Any], Any, Any]
UNPADDED = ("padded-vocab-size=null", "tokenizer-type=HFTokenizer", "vocab-file=a")
EFFECTS: dict[str, Effect] = {
    "num_layers": ((), ("num-layers=5",), count, 288 * 64 + 2 * LAYER + 128, 288 * 64 + 5 * LAYER + 128),
    "hidden_size": ((), ("hidden-size=32",), shape("layers.0.mlp.up.weight"), (256, 64), (128, 32)),
    "num_attention_heads": ((), ("num-attention-heads=8",), lambda built: built.model.shape.head_dim, 16, 8),
    "max_position_embeddings": ((), ("max-position-embeddings=40",), shape("position.weight"), (32, 64), (40, 64)),
    "norm": ((), ("norm=rmsnorm",), kinds, {"LayerNorm"}, {"RMSNorm"}),
    "rms_norm": ((), ("rms-norm=true",), shape("final_norm.bias"), (64,), None),
    "layernorm_epsilon": ((), ("layernorm-epsilon=0.5",), eps, 1e-5, 0.5),
    "rms_norm_epsilon": (("norm=rmsnorm",), ("rms-norm-epsilon=0.5",), eps, 1e-8, 0.5),
    "scalenorm_epsilon": (("norm=scalenorm",), ("scalenorm-epsilon=0.5",), eps, 1e-8, 0.5),
    "pos_emb": ((), ("pos-emb=none",), shape("position.weight"), (32, 64), None),
    "sinusoidal_pos_emb": ((), ("sinusoidal-pos-emb=true",), shape("position.weight"), (32, 64), None),
    "rpe": ((), ("rpe=true", "rpe-causal=true"), shape("position.weight"), (32, 64), (32, 4)),
    "rpe_num_buckets": (("pos-emb=rpe",), ("rpe-num-buckets=8",), shape("position.weight"), (32, 4), (8, 4)),
    "no_weight_tying": ((), ("no-weight-tying=true",), count, 288 * 64 + 2 * LAYER + 128, 544 * 64 + 2 * LAYER + 128),
    "geglu": ((), ("geglu=true",), shape("layers.0.mlp.up.weight"), (256, 64), (512, 64)),
    "init_method_std": ((), ("init-method-std=0.5",), spread("layers.0.mlp.up.weight"), 0.02, 0.5),
    "num_unique_layers": ((), ("num-unique-layers=1",), lambda built: len(built.model.layers), 2, 1),
    "param_sharing_style": (
        ("num-layers=4", "num-unique-layers=2"),
        ("param-sharing-style=spaced",),
        lambda built: built.model.shape.layer_order,
        (0, 1, 0, 1),
        (0, 0, 1, 1),
    ),
    "make_vocab_size_divisible_by": (UNPADDED, ("make-vocab-size-divisible-by=100",), rows, 50304, 50300),
    "hidden_dropout": ((), ("hidden-dropout=0.5",), passes_differ, False, True),
    "attention_dropout": ((), ("attention-dropout=0.5",), passes_differ, False, True),
    "seed": ((), ("seed=2",), drawn_from(1234), True, False),
    "lr": (("optimizer.params={}",), ("lr=3e-4",), group("lr"), 1e-3, 3e-4),
    "adam_beta1": ((), ("adam-beta1=0.8",), group("betas"), (0.9, 0.999), (0.8, 0.999)),
    "adam_beta2": ((), ("adam-beta2=0.95",), group("betas"), (0.9, 0.999), (0.9, 0.95)),
    "adam_eps": ((), ("adam-eps=1e-6",), group("eps"), 1e-8, 1e-6),
    "weight_decay": ((), ("weight-decay=0.2",), decays, {(0.01, False), (0.0, True)}, {(0.2, False), (0.0, True)}),
}


@pytest.fixture(scope="module")
def plugins() -> Any:
    return load_plugins()


@pytest.fixture
def build(tmp_path: Path, plugins: Any) -> Callable[..., Built]:
    def _build(*sets: str) -> Built:
        (tmp_path / "c.yml").write_text(BASE)
        plan = prepare_run([tmp_path / "c.yml"], sets, catalog=plugins, machine=Machine(0, 1), start=False).plan
        alone = Groups(None, None, 0, 1)
        context = BuildContext(torch.device("cpu"), torch.float32, alone, seed=plan.train.seed)
        model = build_model(plan.model, plan.model.padded_vocab_size or 256, context)
        return Built(plan, model, build_optimizer(plan.optim, model, None, GPTArchitecture.tables))

    return _build


@pytest.mark.parametrize("key", EFFECTS)
def test_changing_a_key_changes_what_it_says(build: Callable[..., Built], key: str) -> None:
    common, changed, measure, before, after = EFFECTS[key]
    near = (lambda value: pytest.approx(value, rel=0.02)) if isinstance(before, float) else (lambda value: value)
    assert measure(build(*common)) == near(before)
    assert measure(build(*common, *changed)) == near(after)

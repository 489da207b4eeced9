"""A sample of keys in runs of three updates on one rank: what acts changes a bit, what is noted does not."""

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from neox_deepspeed.api import build_engine
from neox_gpt.architecture import GPTArchitecture
from neox_gpt.build import build_model

from neox_core.checkpoint.rng import seed_rank
from neox_core.hooks.loader import load_plugins
from neox_core.parallel.context import build_context
from neox_core.parallel.groups import build_groups
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import RunPlan
from neox_core.run.optimizer import build_optimizer

pytestmark = pytest.mark.usefixtures("process_group")

BASE = """\
num-layers: 2
hidden-size: 16
num-attention-heads: 2
seq-length: 16
max-position-embeddings: 16
data-path: none
padded-vocab-size: 32
hidden-dropout: 0.1
train-iters: 10
train_micro_batch_size_per_gpu: 2
gradient_accumulation_steps: 2
optimizer: {type: Adam, params: {lr: 1.0e-2}}
device: cpu
"""
UPDATES = 3
BF16 = "bf16.enabled=true"
WHOLE = "zero_optimization={stage: 2, reduce_scatter: false}"
MUON = ("optimizer.type=Muon", "zero_optimization.stage=1")
SPARSE = ("sparsity=all", "sparse_attention={mode: local, block: 4}")

# a key, and what stands beside it
ACTS: tuple[tuple[str, ...], ...] = (
    ("seed=7",),
    ("hidden-dropout=0.2",),
    ("attention-dropout=0.2",),
    ("norm=rmsnorm",),
    ("layernorm-epsilon=0.1",),
    ("pos-emb=rotary",),
    ("rotary-pct=0.5", "pos-emb=rotary"),
    ("activation=geglu",),
    ("no-weight-tying=true",),
    ("gpt-j-residual=true",),
    ("use-bias-in-mlp=false",),
    ("num-kv-heads=1",),
    ("num-unique-layers=1",),
    ("init-method=wang_init",),
    ("init-method-std=0.04",),
    ("sparsity=all",),
    ("sparse_attention.num_sliding_window_blocks=1", *SPARSE),
    ("weight-decay=0.5",),
    ("gradient_clipping=0.01",),
    ("optimizer.type=Lion",),
    ("optimizer.params.betas=[0.5, 0.6]",),
    ("optimizer.params.eps=0.1",),
    ("optimizer.params.adam_w_mode=false", "weight-decay=0.5"),
    (BF16,),
    ("torch_autocast.enabled=true",),
    ("communication_data_type=fp16", BF16),
    ("communication_data_type=bf16", "zero_optimization.stage=1"),
    ("communication_data_type=bf16", *MUON),
    ("gradient_accumulation_steps=1",),
)
# key, what is said of it, and what stands beside it
NOTED: tuple[tuple[str, ...], ...] = (
    ("prescale_gradients=true", "nothing"),
    ("prescale_gradients=true", "nothing", WHOLE),
    ("gradient_predivide_factor=4.0", "no more than round"),
    ("gradient_predivide_factor=4.0", "no more than round", WHOLE),
    ("communication_data_type=fp16", "nothing"),
    ("communication_data_type=fp32", "nothing", BF16),
    ("communication_data_type=fp32", "nothing", "zero_optimization.stage=1"),
    ("zero_optimization.overlap_comm=true", "nothing", "zero_optimization.stage=1"),
    ("zero_optimization.overlap_comm=true", "nothing", "zero_optimization.stage=2"),
    ("zero_optimization.reduce_scatter=false", "nothing", "zero_optimization.stage=2"),
    ("zero_optimization.round_robin_gradients=true", "nothing", "zero_optimization.stage=1"),
    ("zero_optimization.reduce_bucket_size=100", "no more than size a buffer", "zero_optimization.stage=1"),
    ("init-method-std=0.04", "nothing", "init-method=wang_init", "output-layer-init-method=small_init"),
)
Run = Callable[..., tuple[str, dict[str, str]]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """`--set`s to (digest of losses and weights, what the notes say of a key), each run once."""
    file = tmp_path_factory.mktemp("short") / "c.yml"
    file.write_text(BASE)
    catalog = load_plugins()

    @cache
    def _run(*sets: str) -> tuple[str, dict[str, str]]:
        found = prepare_run([Path(file)], list(sets), catalog=catalog, machine=Machine(0, 1), start=False)
        return _digest(found.plan), {each.key.replace("-", "_"): each.message for each in found.notes}

    return _run


def _digest(plan: RunPlan) -> str:
    groups = build_groups(plan.cluster)
    context = build_context(plan, groups, 0)
    seed_rank(plan.train.seed, 0, context.device)
    assert plan.model.padded_vocab_size is not None
    model = build_model(plan.model, plan.model.padded_vocab_size, context)
    engine = build_engine(plan, model, build_optimizer(plan.optim, model, groups.data, GPTArchitecture.tables), context)
    generator = torch.Generator().manual_seed(0)
    size = plan.batch.micro_batch, plan.model.seq_length + 1
    batches = (torch.randint(32, size, generator=generator) for _ in range(UPDATES * plan.batch.gradient_accumulation))
    losses = [float(engine.train_step(batches, plan.optim.lr)) for _ in range(UPDATES)]
    weights = [each.stepped.flatten()[each.offset :][: each.count].tolist() for each in engine.shards]
    engine.close()
    return hashlib.sha256(repr((losses, weights)).encode()).hexdigest()


def test_the_same_run_has_the_same_bits(run: Run) -> None:
    assert run("num-workers=0")[0] == run()[0]


@pytest.mark.parametrize("sets", ACTS, ids=" ".join)
def test_a_key_that_acts_changes_the_run(sets: tuple[str, ...], run: Run) -> None:
    key, *beside = sets
    digest, notes = run(*beside, key)
    assert digest != run(*beside)[0]
    assert "does n" not in notes.get(_name(key), "")


@pytest.mark.parametrize("sets", NOTED, ids=" ".join)
def test_a_key_that_is_said_to_do_nothing_changes_no_bit(sets: tuple[str, ...], run: Run) -> None:
    key, does, *beside = sets
    digest, notes = run(*beside, key)
    assert notes[_name(key)].startswith(f"does {does}: ")
    assert digest == run(*beside)[0]


def _name(key: str) -> str:
    return key.partition("=")[0].replace("-", "_")

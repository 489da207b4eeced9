"""Mixers in a whole model: chosen by `attention-config`, trained, decoded, and refused by rules before a start."""

import re
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from attrs import evolve
from click.testing import CliRunner
from neox_gpt.api import MixerSize, build_model
from neox_gpt.architecture import GPTArchitecture
from neox_gpt.attention.cache import DecodingCache
from neox_gpt.attention.draw_layouts import main as draw_attention
from neox_gpt.config.mixers import require_decoding
from neox_gpt.generation import command
from neox_gpt.shape import flops_per_token

from neox_core.errors import ConfigError, NeoxError, UsageError
from neox_core.hooks.component import GROUP
from neox_core.hooks.loader import load_plugins
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run
from neox_core.run.optimizer import build_optimizer

CONFIG = """
num-layers: 4
hidden-size: 32
num-attention-heads: 2
max-position-embeddings: 16
seq-length: 16
data-path: none
data-impl: mmap
padded-vocab-size: 64
train-iters: 2
train_micro_batch_size_per_gpu: 4
hidden-dropout: 0
attention-dropout: 0
optimizer: {type: Adam, params: {lr: 1e-2}}
"""
MIXED = "attention-config=[[[global, gated-linear], all]]"
ONLY = "attention-config=[[[gated-linear], all]]"
ALONE = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1)
Resolve = Callable[..., Any]


@pytest.fixture
def resolve(tmp_path: Path, gated: Any) -> Resolve:
    def _resolve(*sets: str) -> Any:
        (tmp_path / "c.yml").write_text(CONFIG)
        point = EntryPoint("neox-gated-linear", "neox_gated_linear.plugin", GROUP)
        catalog = load_plugins([*entry_points(group=GROUP), point], {})
        return prepare_run([tmp_path / "c.yml"], sets, catalog=catalog, machine=Machine(0, 4), start=False)

    return _resolve


def test_it_trains_beside_softmax_attention(resolve: Resolve) -> None:
    """Every second layer has it; what the host says of the model is what is built, and steps lower the loss."""
    resolved = resolve(MIXED, "gate-divisor=8")
    plan = resolved.plan
    assert [plan.model.mixer(layer).name for layer in range(4)] == ["global", "gated-linear"] * 2
    assert plan.model.layouts == ()
    model = build_model(plan.model, 64, ALONE)
    assert [model.layers[at].attention.divisor for at in (1, 3)] == [8.0, 8.0]
    assert model.layers[1].attention.gate.weight.shape == (2, 32)
    dense = flops_per_token(evolve(model.shape, mixer_flops=0), 16)
    softmax, linear = 6 * 32 * 4 * 32 + 12 * 32 * 16, 6 * 32 * (4 * 32 + 2) + 12 * 32 * 16
    assert model.flops_per_token == dense + 2 * (softmax + linear)
    optimizer = build_optimizer(plan.optim, model, None, GPTArchitecture.tables)
    tokens = torch.arange(64).view(4, 16)
    losses = []
    for _ in range(3):
        loss = model.loss(tokens, tokens.roll(-1, 1))
        losses.append(loss.item())
        loss.backward()
        assert model.layers[1].attention.gate.weight.grad.abs().sum() > 0
        optimizer.step()
        optimizer.zero_grad()
    assert losses[2] < losses[1] < losses[0]


def test_what_the_host_tells_is_what_is_built(resolve: Resolve) -> None:
    from neox_gpt.api import parameter_shapes
    from neox_gpt.config.planner import PLANNER

    resolved = resolve(MIXED)
    size = PLANNER.size(resolved.config, resolved.plan.model)
    assert dict(size.shapes) == parameter_shapes(resolved.plan.model, 64)
    assert size.split["layers.1.attention.output.weight"] == 1
    assert size.kept == 5 * 32 + 3 * 2 * 16 + 2 * 4 * 32  # of the widest layer, its MLP included


@pytest.mark.parametrize(
    "sets", [(), ("attention-config=[[[global, flash], all]]",), ("attention-config=[[[neox-gpt:global], 4]]",)]
)
def test_softmax_attention_alone_is_the_plan_of_no_mixer(resolve: Resolve, sets: tuple[str, ...]) -> None:
    model = resolve(*sets).plan.model
    assert (model.mixers, model.mixer_facts, model.mixer_of_layer) == (None, None, None)


def test_layouts_and_mixers_in_one_list(resolve: Resolve) -> None:
    written = "attention-config=[local, gated-linear, sparse_fixed, flash]"
    model = resolve(written, "sparse_attention.block=4").plan.model
    assert [each.name for each in model.mixers] == ["global", "gated-linear"]
    assert model.mixer_of_layer == (0, 1, 0, 0)
    assert [each.name for each in model.layouts] == ["local", "fixed"]
    assert model.layout_of_layer == (0, None, 1, None)
    assert set(build_model(model, 64, ALONE).tables) == {0, 2}


@pytest.mark.parametrize("sets", [(MIXED,), (ONLY, "pos-emb=none")])
def test_documents_reach_it(resolve: Resolve, sets: tuple[str, ...]) -> None:
    """With reset-attention-mask a document gives what it gives alone, in a model too."""
    plan = resolve(
        *sets,
        "tokenizer-type=CharLevelTokenizer",
        "padded-vocab-size=512",
        "reset-attention-mask=true",
        "reset-position-ids=true",
    )
    model = build_model(plan.plan.model, 64, ALONE, eod=0).eval()
    tokens = torch.tensor([[5, 9, 3, 0, 7, 7, 2, 8]])
    whole, alone = model.logits(tokens), model.logits(tokens[:, 4:])
    torch.testing.assert_close(whole[:, 4:], alone)
    unlike = build_model(evolve(plan.plan.model, reset_attention_mask=False), 64, ALONE, eod=0).eval()
    assert not torch.allclose(unlike.logits(tokens)[:, 4:], alone, atol=1e-4)


@pytest.mark.parametrize("steps", [(1,) * 12, (7, 1, 4)])
def test_a_model_decodes(resolve: Resolve, steps: tuple[int, ...]) -> None:
    model = build_model(resolve(MIXED).plan.model, 64, ALONE).eval()
    tokens = torch.randint(64, (2, 12), generator=torch.Generator().manual_seed(3))
    cache = model.new_cache(capacity=12)
    with torch.no_grad():
        parts = [model.logits(part, cache) for part in tokens.split(list(steps), 1)]
        torch.testing.assert_close(torch.cat(parts, 1), model.logits(tokens))
    assert isinstance(cache, DecodingCache)
    assert set(cache.states[1]) == {"sum"}


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("attention-config=[[[gated-linear], 3]]",), "attention-config: names the attention of 3 layers"),
        (("attention-config=[[[gated-liner], all]]",), "attention-config: no mixer 'gated-liner'"),
        (("attention-config=[[[gated-liner], all]]",), "did you mean 'gated-linear'?"),
        (("attention-config=[[[locl], all]]",), "attention-config: no sparse layout 'locl'"),
        (("attention-config=[[[nothing-like-it], all]]",), "attention-config: no mixer 'nothing-like-it'"),
        (("attention-config=[[[mamba], all]]",), "attention-config: mamba is a name of GPT-NeoX that this version"),
        ((MIXED, "num-unique-layers=2"), "attention-config: excludes num-unique-layers"),
        (("gate-divisor=3",), "gate-divisor"),
        ((ONLY, "gate-divisor=two"), "gate-divisor: must be a number"),
        ((ONLY, "sparse_attention.block=4"), "sparse_attention: does nothing: no layer is sparse"),
    ],
)
def test_what_cannot_be_is_refused_before_the_start(resolve: Resolve, sets: tuple[str, ...], said: str) -> None:
    with pytest.raises(NeoxError, match=re.escape(said)):
        resolve(*sets)


TP = ("model-parallel-size=2", "num-gpus=2")
DECLARED = (
    ({"one_rank_only": True}, TP, "attention-config: gated-linear cannot be split over ranks"),
    ({"split": {"gate.bias": 0}, "shapes": {"gate.bias": (3,)}}, TP, "gate.bias of gated-linear is 3, and cannot be"),
    ({"causal": False}, (), "gated-linear is not causal, and causal-lm predicts the next token"),
    ({"decodes": False}, ("sample-prompt=a",), "sample-prompt: needs a state for decoding, which the mixer gated"),
)


@pytest.mark.parametrize(("facts", "sets", "said"), DECLARED)
def test_what_it_declares_is_held_against_the_run(
    resolve: Resolve, gated: Any, monkeypatch: pytest.MonkeyPatch, facts: Any, sets: tuple[str, ...], said: str
) -> None:
    size, whole = gated[2], gated[2].size
    resolve(MIXED, *sets)
    monkeypatch.setattr(size, "size", lambda shape, settings: evolve(whole(shape, settings), **facts))
    with pytest.raises(NeoxError, match=re.escape(said)):
        resolve(MIXED, *sets)


def test_heads_that_ranks_cannot_share_are_refused(
    resolve: Resolve, gated: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = gated[2].size

    def thirds(shape: Any, settings: Any) -> MixerSize:
        size = whole(shape, settings)
        return evolve(size, split={name: evolve(how, heads=3) for name, how in size.split.items()})

    monkeypatch.setattr(gated[2], "size", thirds)
    with pytest.raises(NeoxError, match=r"qkv\.weight of gated-linear has 3 heads, which 2 ranks cannot share"):
        resolve(MIXED, *TP)


@pytest.mark.parametrize("told", [lambda shape, settings: 1 / 0, lambda shape, settings: {"qkv.weight": (3, 3)}])
def test_a_planner_that_tells_nothing_is_named(
    resolve: Resolve, gated: Any, monkeypatch: pytest.MonkeyPatch, told: Any
) -> None:
    monkeypatch.setattr(gated[2], "size", told)
    with pytest.raises(NeoxError, match=r"the planner of mixer gated-linear .*tell the author of neox-gated-linear"):
        resolve(MIXED)


def test_generate_refuses_a_mixer_without_a_state(
    resolve: Resolve, gated: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = gated[2].size
    plan = resolve(MIXED).plan
    require_decoding(plan.model)
    monkeypatch.setattr(gated[2], "size", lambda shape, settings: evolve(whole(shape, settings), decodes=False))
    plan = resolve(MIXED).plan
    monkeypatch.setattr(command, "saved_run", lambda load, catalog: (load, plan))
    done = CliRunner().invoke(command.generate, ["--load", "run", "--prompt", "a"])
    assert isinstance(done.exception, UsageError | click.ClickException)
    assert "mixer neox-gated-linear:gated-linear" in str(done.exception)
    assert "has no state for decoding" in str(done.exception)


def test_a_position_that_nothing_takes_is_refused(resolve: Resolve) -> None:
    build_model(resolve(ONLY, "pos-emb=none").plan.model, 64, ALONE)
    build_model(resolve(ONLY, "pos-emb=learned").plan.model, 64, ALONE)
    build_model(resolve(MIXED, "pos-emb=rotary").plan.model, 64, ALONE)
    for name in ("rotary", "alibi", "rpe"):
        with pytest.raises(
            ConfigError, match=f"pos-emb: {name} does nothing: no layer has a mixer that takes positions"
        ):
            resolve(ONLY, f"pos-emb={name}")
    plan = resolve(MIXED, "pos-emb=rotary").plan.model  # of a position whose planner does not tell
    facts = tuple(evolve(each, needs_positions=False) for each in plan.mixer_facts or ())
    with pytest.raises(ConfigError, match="pos-emb rotary does nothing: no layer has a mixer that takes positions"):
        build_model(evolve(plan, mixer_facts=facts), 64, ALONE)


def test_a_key_that_no_mixer_uses_gets_a_note(resolve: Resolve) -> None:
    sets = ("num-kv-heads=1", "use-bias-in-attn-linear=false", "attention-dropout=0.2")

    def notes(*sets: str) -> set[str]:
        return {each.key for each in resolve(*sets).notes if "no layer has a mixer that uses it" in each.message}

    assert notes(ONLY, *sets) == {each.partition("=")[0] for each in sets}
    assert notes(MIXED, *sets) == set()


def test_a_picture_names_other_mixers(
    resolve: Resolve, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import json

    from neox_core.plan.runfile import to_plain

    plan = resolve("attention-config=[global, gated-linear, local, gated-linear]", "sparse_attention.block=4").plan
    monkeypatch.setattr("sys.argv", ["draw", json.dumps({"model": to_plain(plan)["model"], "seed": 1, "out": None})])
    draw_attention()
    said = capsys.readouterr().out
    assert "layer 0: everything before" in said
    assert "layers 1, 3: the mixer gated-linear" in said

"""From a plan to a model: components by their import paths, weights drawn or given."""

import pytest
import torch
from attrs import evolve
from neox_gpt.build import build_model
from neox_gpt.config.plan import GPTPlan
from neox_gpt.gpt import GPT
from neox_norms.scalenorm import ScaleNorm
from neox_positions.rotary import Rotary

from neox_core.errors import CheckpointError, PluginError
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.runfile import ComponentRef


def component(kind: str, target: str, settings_class: str | None = None, **settings: float) -> ComponentRef:
    return ComponentRef(kind, "any", "neox-any", "0.1.0", target, settings_class, settings)


PLAN = GPTPlan(
    num_layers=2,
    hidden_size=32,
    num_attention_heads=2,
    intermediate_size=48,
    seq_length=8,
    max_position_embeddings=16,
    norm=component(
        "norm", "neox_norms.scalenorm:ScaleNorm", "neox_norms.settings:ScaleNormSettings", scalenorm_epsilon=0.25
    ),
    activation=component("activation", "neox_activations.gated:GeGLU"),
    position=component(
        "position", "neox_positions.rotary:Rotary", "neox_positions.settings:RotarySettings", rotary_pct=0.5
    ),
    padded_vocab_size=64,
    make_vocab_size_divisible_by=1,
    tie_embeddings=False,
    parallel_residual=False,
    residual_post_norm=False,
    hidden_dropout=0.1,
    attention_dropout=0.2,
    init_method="normal",
    output_init_method="scaled_normal",
    init_std=0.02,
    attention_softmax_in_fp32=True,
)
CONTEXT = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1)


def test_every_number_of_the_plan_arrives() -> None:
    model = build_model(PLAN, 64, evolve(CONTEXT, narrow_loss=True))
    assert isinstance(model.final_norm, ScaleNorm)
    assert model.final_norm.eps == 0.25
    assert isinstance(model.position, Rotary)
    assert model.position.turned == 8
    block = model.layers[0]
    assert block.mlp.up.weight.shape == (2 * 48, 32)
    assert block.mlp.down.weight.shape == (32, 48)
    assert (block.dropout, model.embedding.dropout, block.attention.dropout) == (0.1, 0.1, 0.2)
    assert block.attention.softmax_in_fp32
    assert model.narrow_loss
    assert len(model.layers) == 2
    assert model.embedding.weight.shape == model.output_weight.shape == (64, 32)
    assert model.embedding.weight is not model.output_weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dtype_of_the_context(dtype: torch.dtype) -> None:
    model = build_model(PLAN, 64, evolve(CONTEXT, dtype=dtype))
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}


def test_weights_that_are_given_are_used() -> None:
    source = build_model(PLAN, 64, evolve(CONTEXT, seed=9))
    weights = dict(source.named_parameters())
    copy = build_model(PLAN, 64, CONTEXT, weights=weights)
    assert isinstance(copy, GPT)
    for name, parameter in copy.named_parameters():
        assert torch.equal(parameter, weights[name])
        assert parameter is not weights[name]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"final_norm.weight": None}, "final_norm.weight is None and should be"),
        ({"extra": torch.ones(3)}, r"extra is \(3,\) and should be None"),
        ({"head.weight": torch.ones(64, 31)}, r"head.weight is \(64, 31\) and should be \(64, 32\)"),
    ],
)
def test_weights_of_another_model_are_refused(change: dict[str, torch.Tensor | None], said: str) -> None:
    weights = {**dict(build_model(PLAN, 64, CONTEXT).named_parameters()), **change}
    given = {name: weight for name, weight in weights.items() if weight is not None}
    with pytest.raises(CheckpointError, match=f"weights of another model: {said}"):
        build_model(PLAN, 64, CONTEXT, weights=given)


def test_a_component_that_is_not_there_is_named() -> None:
    missing = evolve(PLAN, norm=component("norm", "neox_nowhere.norm:Norm"))
    with pytest.raises(PluginError, match=r"neox_nowhere\.norm:Norm"):
        build_model(missing, 64, CONTEXT)

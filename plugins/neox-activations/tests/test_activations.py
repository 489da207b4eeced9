"""The activations against closed forms in float64 and Hugging Face's modules."""

import math

import pytest
import torch
from neox_activations.gated import Bilinear, GeGLU, ReGLU, SigmoidGLU, SwiGLU
from neox_activations.gelu import ErfGelu, Gelu, TanhGelu
from neox_activations.plugin import neox_activations
from neox_activations.pointwise import Mish, ReLU, SiLU, Softsign
from neox_author.testing import assert_light, load_only
from neox_gpt.testing import check_activation
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from transformers.activations import ACT2FN


def test_listing_is_light() -> None:
    assert_light("neox-activations")


@pytest.mark.parametrize("name", [each.name for each in neox_activations()])
def test_keeps_the_contract(name: str) -> None:
    check_activation(load_only("neox-activations"), name)


@pytest.fixture
def x() -> Tensor:
    return torch.linspace(-9, 9, 400, dtype=torch.float64)


def by_erf(x: Tensor) -> Tensor:
    return torch.tensor([v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x.tolist()], dtype=x.dtype)


def test_gelu_is_by_erf(x: Tensor) -> None:
    torch.testing.assert_close(Gelu(None)(x), by_erf(x), rtol=1e-12, atol=1e-15)


def test_erf_gelu_is_gelu_without_its_operator(x: Tensor) -> None:
    torch.testing.assert_close(ErfGelu(None)(x), by_erf(x), rtol=1e-12, atol=1e-15)
    names = {str(node.target) for node in make_fx(ErfGelu(None))(x).graph.nodes}
    assert "aten.erf.default" in names
    assert not any("gelu" in name for name in names)


def test_openai_gelu_is_by_tanh(x: Tensor) -> None:
    """0.79788 = sqrt(2 / pi), as the ledger of keys writes it."""
    values = [0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in x.tolist()]
    out = TanhGelu(None)(x)
    torch.testing.assert_close(out, torch.tensor(values, dtype=x.dtype), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(out, ACT2FN["gelu_new"](x), rtol=1e-9, atol=1e-12)
    assert 1e-5 < (out - Gelu(None)(x)).abs().max() < 1e-3


def sigmoid(v: float) -> float:
    return 1 / (1 + math.exp(-v))


POINTWISE = {
    ReLU: lambda v: v if v > 0 else 0.0,
    SiLU: lambda v: v * sigmoid(v),
    Mish: lambda v: v * math.tanh(math.log1p(math.exp(v))),
    Softsign: lambda v: v / (1 + abs(v)),
}


@pytest.mark.parametrize("kind", POINTWISE)
def test_the_closed_form(kind: type, x: Tensor) -> None:
    expected = torch.tensor([POINTWISE[kind](v) for v in x.tolist()], dtype=x.dtype)
    torch.testing.assert_close(kind(None)(x), expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
    ("gated", "gate_function"),
    [
        (GeGLU, by_erf),
        (SwiGLU, ACT2FN["silu"]),
        (ReGLU, lambda gate: gate.clamp(min=0)),
        (SigmoidGLU, lambda gate: gate.new_tensor([sigmoid(v) for v in gate.tolist()])),
        (Bilinear, lambda gate: gate),
    ],
)
def test_gated_is_value_times_activated_gate(gated: type, gate_function, x: Tensor) -> None:
    value, gate = x.view(2, 20, 10)
    expected = value * gate_function(gate.flatten()).view(20, 10)
    torch.testing.assert_close(gated(None)(torch.cat((value, gate), -1)), expected, rtol=1e-12, atol=1e-15)

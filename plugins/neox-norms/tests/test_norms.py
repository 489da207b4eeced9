"""The three norms against float64 closed forms, torch's and Hugging Face's."""

from typing import Any

import pytest
import torch
from neox_author.testing import assert_light, load_only
from neox_gpt.testing import check_norm
from neox_norms.layernorm import LayerNorm
from neox_norms.rmsnorm import RMSNorm
from neox_norms.scalenorm import ScaleNorm
from neox_norms.settings import LayerNormSettings, RMSNormSettings, ScaleNormSettings
from torch import Tensor
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from neox_core.errors import ConfigError

DIM = 40


def test_listing_is_light() -> None:
    assert_light("neox-norms")


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("layernorm", {}),
        ("layernorm", {"layernorm_epsilon": 0.1}),
        ("rmsnorm", {}),
        ("rmsnorm", {"rms_norm_epsilon": 1e-3}),
        ("rmsnorm", {"rms_norm_epsilon": 1e-3, "rms_norm_epsilon_in": "mean-square"}),
        ("rmsnorm", {"rms_norm_adds_one": True}),
        ("scalenorm", {}),
        ("scalenorm", {"scalenorm_epsilon": 0.5}),
    ],
)
def test_keeps_the_contract(name: str, settings: dict[str, Any]) -> None:
    check_norm(load_only("neox-norms"), name, **settings)


@pytest.mark.parametrize(
    ("name", "key"),
    [("layernorm", "layernorm_epsilon"), ("rmsnorm", "rms_norm_epsilon"), ("scalenorm", "scalenorm_epsilon")],
)
def test_epsilon_must_be_positive(name: str, key: str) -> None:
    with pytest.raises(ConfigError, match=key.replace("_", ".")):
        check_norm(load_only("neox-norms"), name, **{key: 0.0})


@pytest.fixture
def x() -> Tensor:
    """float64 [6, DIM], small enough for every epsilon below to show."""
    return torch.randn(6, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 0.01


@pytest.mark.parametrize("epsilon", [1e-5, 1e-2])
def test_layernorm_is_the_closed_form(x: Tensor, epsilon: float) -> None:
    norm = LayerNorm(DIM, LayerNormSettings(layernorm_epsilon=epsilon)).double()
    norm.weight.data.uniform_(0.5, 2)
    norm.bias.data.uniform_(-1, 1)
    mean = x.sum(-1, keepdim=True) / DIM
    variance = ((x - mean) ** 2).sum(-1, keepdim=True) / DIM
    expected = (x - mean) / (variance + epsilon) ** 0.5 * norm.weight + norm.bias
    torch.testing.assert_close(norm(x), expected, rtol=1e-10, atol=1e-12)


def test_rmsnorm_that_adds_one_is_gemmas() -> None:
    ours = RMSNorm(
        DIM, RMSNormSettings(rms_norm_epsilon=1e-3, rms_norm_epsilon_in="mean-square", rms_norm_adds_one=True)
    )
    assert torch.equal(ours.weight, torch.zeros(DIM))
    theirs = Gemma2RMSNorm(DIM, eps=1e-3)
    ours.weight.data.uniform_(-1, 1)
    theirs.weight.data = ours.weight.data
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(6, DIM, generator=torch.Generator().manual_seed(0)).to(dtype) * 0.1
        torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("epsilon", [1e-8, 1e-2])
def test_rmsnorm_adds_epsilon_to_the_root(x: Tensor, epsilon: float) -> None:
    norm = RMSNorm(DIM, RMSNormSettings(rms_norm_epsilon=epsilon)).double()
    norm.weight.data.uniform_(0.5, 2)
    root = ((x**2).sum(-1, keepdim=True) / DIM) ** 0.5
    torch.testing.assert_close(norm(x), x / (root + epsilon) * norm.weight, rtol=1e-10, atol=1e-12)


def test_rmsnorm_without_epsilon_to_speak_of_is_llamas() -> None:
    x = torch.randn(6, DIM, generator=torch.Generator().manual_seed(1))
    ours, theirs = RMSNorm(DIM, RMSNormSettings()), LlamaRMSNorm(DIM, eps=1e-16)
    ours.weight.data.uniform_(0.5, 2)
    theirs.weight.data.copy_(ours.weight)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("epsilon", [1e-8, 1e-2])
def test_rmsnorm_with_epsilon_in_the_mean_square_is_llamas(x: Tensor, epsilon: float) -> None:
    settings = RMSNormSettings(rms_norm_epsilon=epsilon, rms_norm_epsilon_in="mean-square")
    ours, theirs = RMSNorm(DIM, settings), LlamaRMSNorm(DIM, eps=epsilon)
    ours.weight.data.uniform_(0.5, 2)
    theirs.weight.data.copy_(ours.weight)
    torch.testing.assert_close(ours(x.float()), theirs(x.float()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("epsilon", [1e-8, 1.0])
def test_scalenorm_divides_by_the_length_or_the_epsilon(x: Tensor, epsilon: float) -> None:
    norm = ScaleNorm(DIM, ScaleNormSettings(scalenorm_epsilon=epsilon)).double()
    norm.weight.data.fill_(1.7)
    length = ((x**2).sum(-1, keepdim=True) ** 0.5).clamp(min=epsilon)
    torch.testing.assert_close(norm(x), x / length * 1.7, rtol=1e-10, atol=1e-12)
    assert norm.weight.numel() == 1


def test_zeros_stay_zeros() -> None:
    """What the ledger of keys says of rmsnorm; layernorm gives its bias."""
    zeros = torch.zeros(2, DIM)
    for norm in (RMSNorm(DIM, RMSNormSettings()), ScaleNorm(DIM, ScaleNormSettings())):
        assert torch.equal(norm(zeros), zeros)

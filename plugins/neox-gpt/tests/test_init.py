"""Weights come from (seed, parameter name) by the method that is asked for."""

import math

import pytest
import torch
from neox_gpt.init import generator, init_parameters
from torch import nn

from neox_core.errors import ConfigError

WIDE = {"num_layers": 2, "hidden_size": 256, "intermediate_size": 1024}


def drawn(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach() for name, value in model.named_parameters()}


def test_seed_and_name_decide(make) -> None:
    one, same, other = drawn(make(seed=1)), drawn(make(seed=1)), drawn(make(seed=2))
    for name, value in one.items():
        assert torch.equal(value, same[name])
        assert torch.equal(value, other[name]) == (value.dim() < 2)
    matrices = [value for value in one.values() if value.shape == (64, 64)]
    assert len(matrices) == 3
    assert not any(torch.equal(matrices[0], value) for value in matrices[1:])


def test_layers_that_are_added_change_no_other(make) -> None:
    """With an init that does not depend on the depth, the first layers of a deeper model are those of a shallower."""
    shallow = drawn(make(num_layers=2, output_init_method="normal"))
    deep = drawn(make(num_layers=5, output_init_method="normal", tie_embeddings=True))
    for name in shallow.keys() & deep.keys():
        assert torch.equal(shallow[name], deep[name])


def test_dtype_changes_rounding_alone(make) -> None:
    exact, rounded = drawn(make()), drawn(make(dtype=torch.bfloat16))
    for name, value in exact.items():
        assert torch.equal(value.bfloat16(), rounded[name])


def test_torchs_own_seed_is_neither_used_nor_moved(make) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    make("gated, tied, learned")
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("method", "std"),
    [
        ("normal", 0.03),
        ("scaled_normal", 0.03 / math.sqrt(2 * 2)),
        ("single_residual_scaled_normal", 0.03 / math.sqrt(2)),
        ("small_init", math.sqrt(2 / (5 * 256))),
        ("wang_init", 2 / (2 * math.sqrt(256))),
    ],
)
def test_spread_of_normal_methods(make, method: str, std: float) -> None:
    """Of n normal numbers the deviation is known to within 5 std / sqrt(2 n), the mean to within 5 std / sqrt(n)."""
    for ours in ("init_method", "output_init_method"):
        weights = drawn(make(**WIDE, init_std=0.03, **{ours: method}))
        if ours == "init_method":
            names = ["embedding.weight", "head.weight", "layers.1.attention.qkv.weight", "layers.0.mlp.up.weight"]
        else:
            names = ["layers.1.attention.output.weight", "layers.0.mlp.down.weight"]
        for name in names:
            value = weights[name].double()
            assert value.std().item() == pytest.approx(std, rel=5 / math.sqrt(2 * value.numel()))
            assert abs(value.mean().item()) < 5 * std / math.sqrt(value.numel())
            assert (value.abs() > 3 * std).double().mean().item() == pytest.approx(0.0027, abs=0.0015)


@pytest.mark.parametrize("method", ["xavier_uniform", "xavier_normal"])
def test_spread_of_xavier(make, method: str) -> None:
    """Variance 2 / (inputs + outputs): Glorot and Bengio 2010."""
    value = drawn(make(**WIDE, init_method=method))["layers.0.mlp.up.weight"].double()
    std = math.sqrt(2 / (256 + 1024))
    assert value.std().item() == pytest.approx(std, rel=0.02)
    bound = value.abs().max().item() / (std * math.sqrt(3))
    assert (0.99 < bound <= 1) == (method == "xavier_uniform")


@pytest.mark.parametrize(("method", "square"), [("orthogonal", 2.0), ("scaled_orthogonal", 2.0 / 2)])
def test_rows_or_columns_of_an_orthogonal_matrix_are(make, method: str, square: float) -> None:
    """Whichever are fewer, each with the gain as its norm, and their signs are as often positive as negative."""
    weights = drawn(make(num_layers=2, init_method=method, output_init_method=method))
    for name in ("layers.0.mlp.up.weight", "layers.1.mlp.down.weight", "layers.1.attention.output.weight"):
        value = weights[name].double()
        narrow = value if value.shape[0] <= value.shape[1] else value.T
        torch.testing.assert_close(
            narrow @ narrow.T, square * torch.eye(len(narrow), dtype=torch.float64), rtol=0, atol=1e-5
        )
        assert (value > 0).double().mean().item() == pytest.approx(0.5, abs=5 / math.sqrt(4 * value.numel()))
    assert not torch.equal(weights["layers.0.mlp.up.weight"], weights["layers.1.mlp.up.weight"])


def test_gains_and_biases_start_at_one_and_zero(make) -> None:
    for name, value in drawn(make()).items():
        if value.dim() == 1:
            assert torch.equal(value, torch.full_like(value, 1.0 if name.endswith("norm.weight") else 0.0))


def test_positions_are_drawn_too(make) -> None:
    assert drawn(make("gated, tied, learned"))["position.weight"].std().item() == pytest.approx(0.02, rel=0.1)


def test_first_loss_is_that_of_a_model_that_knows_nothing(make, form, tokens) -> None:
    assert make(form).loss(tokens, tokens.roll(-1, 1)).item() == pytest.approx(math.log(96), abs=0.1)


def test_unknown_method_is_refused(make) -> None:
    model = make()
    with pytest.raises(ConfigError, match="no init method 'uniform'"):
        init_parameters(model, model.shape, 1, "uniform", "normal", 0.02)
    with pytest.raises(ConfigError):
        make(output_init_method="")


def test_generators_of_names_differ() -> None:
    draws = {float(torch.rand((), generator=generator(seed, name))) for seed in (0, 1) for name in ("a", "b", "a.b")}
    assert len(draws) == 6

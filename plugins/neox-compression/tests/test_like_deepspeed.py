"""Rounding against the numbers of DeepSpeed 0.19.6, to 1e-6."""

from collections.abc import Callable
from typing import Any

import torch
from neox_compression.change import Compression
from neox_compression.pruning.masks import mask_of, sizes_of
from neox_compression.quantization.rounding import bits_at, round_in_range, round_weight, whole_share
from neox_compression.settings import CompressionSettings
from neox_gpt.api import LinearShape, RowLinear
from torch import Tensor

from neox_core.config.schema.structure import structure_settings
from neox_core.parallel.tensor import ALONE

Given = Callable[..., Tensor]
Reference = dict[str, list[dict[str, Any]]]


def same(found: Tensor, values: list[float]) -> None:
    torch.testing.assert_close(found.reshape(-1), torch.tensor(values), rtol=0, atol=1e-6)


def changed(block: dict[str, Any], inputs: int = 6, outputs: int = 3) -> Any:
    settings = structure_settings(CompressionSettings, {"compression_training": block}, path="")
    return Compression(settings).change(LinearShape("layers.0.mlp.up", inputs, outputs, "outputs"), ALONE)


def test_weights(reference: Reference, given: Given) -> None:
    for case in reference["weights"]:
        weight = given(case["seed"], *case["shape"])
        found = round_weight(weight, case["bits"], case["groups"], symmetric=case["symmetric"])
        same(found, case["values"])
        assert all(
            len(part.unique()) <= 2 ** case["bits"] + (case["bits"] < 3) for part in found.view(case["groups"], -1)
        )
    assert len(reference["weights"]) == 60


def test_inputs_in_the_range_of_each_token(reference: Reference, given: Given) -> None:
    for case in reference["inputs"]:
        x = given(case["seed"], *case["shape"])
        sides = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
        same(round_in_range(x, *sides, case["bits"], symmetric=case["symmetric"]), case["values"])
    assert reference["inputs"]


def test_inputs_in_a_running_range(reference: Reference, given: Given) -> None:
    """Three steps of growing inputs, then an evaluation."""
    for case in reference["static"]:
        kind = "symmetric" if case["symmetric"] else "asymmetric"
        shared = {"enabled": True, "quantization_type": kind, "range_calibration": "static"}
        groups = {"g": {"params": {"bits": case["bits"]}}}
        own = changed({"activation_quantization": {"shared_parameters": shared, "different_groups": groups}})
        for step, seed in enumerate(case["seeds"]):
            own.at_step(step)
            whole = given(seed, *case["shape"]) * (step + 1)
            micro_batches = own.change_input(whole[:1]), own.change_input(whole[1:])
            assert torch.equal(torch.cat(micro_batches), whole) == (step == 0)
        own.at_step(3)
        torch.testing.assert_close(own.range, torch.nn.Parameter(torch.tensor(case["range"]), requires_grad=False))
        own.eval()
        same(own.change_input(given(3, *case["shape"])), case["values"])


def test_zeros_stay_zeros() -> None:
    """Where DeepSpeed divides by zero."""
    for bits in (1, 2, 4):
        assert not round_weight(torch.zeros(2, 4), bits, 2).any()
    assert torch.equal(round_weight(torch.full((2, 4), 3.0), 4, symmetric=False), torch.full((2, 4), 3.0))


def test_stochastic_rounding_is_without_bias(given: Given) -> None:
    """Over 4,000 steps the mean of what is rounded is the weight: the standard error is 0.5 / sqrt(4000) of a step."""
    shared = {"enabled": True, "rounding": "stochastic", "quantize_weight_in_forward": True}
    own = changed(
        {
            "weight_quantization": {
                "shared_parameters": shared,
                "different_groups": {"g": {"params": {"target_bits": 4, "start_bits": 4}}},
            }
        }
    )
    weight = given(1, 3, 6)
    weight[0, 0] = 6.0  # the range, whose half is not clamped
    total = torch.zeros(3, 6, dtype=torch.float64)
    for step in range(4000):
        own.at_step(step)
        total += own.change_weight(weight)
    gap = (total / 4000 - weight).abs()
    gap[0, 0] = 0  # the largest is clamped to the last value
    assert gap.max() < 4 * 0.75 * 0.5 / 4000**0.5
    own.at_step(7)
    assert torch.equal(own.change_weight(weight), own.change_weight(weight))


def test_bits_fall_and_the_blend_ends() -> None:
    """From the documents: a bit less every period; whole after 0 steps, rounded after 1 / ratio."""
    assert [bits_at(step, 8, 6, 3) for step in (0, 2, 3, 5, 6, 100)] == [8, 8, 7, 7, 6, 6]
    shares = [whole_share(step, 8, 7, 5, 0.25) for step in range(11)]
    assert shares == [1, 0.75, 0.5, 0.25, 0, 1, 0.75, 0.5, 0.25, 0, 0]


def ones(mask: Tensor) -> str:
    return "".join(str(int(each)) for each in mask.reshape(-1).tolist())


def test_masks(reference: Reference, given: Given) -> None:
    for case in reference["masks"]:
        weight = given(case["seed"], *case["shape"])
        for what in ("sparse", "row"):
            assert ones(mask_of(sizes_of(weight, what), case["ratio"])) == case[what]
        assert ones(mask_of(weight, case["ratio"])) == case["topk"]
    assert len(reference["masks"]) == 15


def test_whole_layers_with_several_techniques(reference: Reference, given: Given) -> None:
    """Outputs and all gradients, of learned scores too."""
    for case in reference["layers"]:
        block: dict[str, Any] = {}
        for what, method in (("sparse", "topk"), ("row", "l1"), ("head", "topk")):
            if case[what]:
                shared = {"enabled": True, "method": method, **({"num_heads": 4} if what == "head" else {})}
                groups = {"g": {"params": {"dense_ratio": case[what]}}}
                block[f"{what}_pruning"] = {"shared_parameters": shared, "different_groups": groups}
        if case["bits"]:
            shared = {"enabled": True, "quantize_weight_in_forward": True, "quantize_groups": 2}
            bits = {"params": {"start_bits": case["bits"], "target_bits": case["bits"]}}
            block["weight_quantization"] = {"shared_parameters": shared, "different_groups": {"g": bits}}
        if case["act"]:
            shared = {"enabled": True, "quantization_type": "asymmetric", "range_calibration": case["act"]}
            block["activation_quantization"] = {"shared_parameters": shared, "different_groups": {"g": {}}}
        layer = RowLinear(8, 6)
        settings = structure_settings(CompressionSettings, {"compression_training": block}, path="")
        own: Any = Compression(settings).change(LinearShape("layers.0.attention.output", 8, 6, "inputs"), ALONE)
        layer.take_change("compression", own)
        with torch.no_grad():
            layer.weight.copy_(given(11, 6, 8) / 4)
            layer.bias.copy_(given(12, 6))  # type: ignore[union-attr]  # it has one
            for name, seed, shape in (("sparse_scores", 13, (6, 8)), ("head_scores", 14, (1, 4))):
                if hasattr(own, name):
                    own.get_parameter(name).copy_(given(seed, *shape))
        own.at_step(0)
        x = given(15, 2, 3, 8).requires_grad_()
        result = layer(x)
        (result * given(16, 2, 3, 6)).sum().backward()
        found = {"values": result, "x": x.grad, "weight": layer.weight.grad}
        found["bias"] = layer.get_parameter("bias").grad
        found |= {name: own.get_parameter(name).grad for name in ("sparse_scores", "head_scores") if hasattr(own, name)}
        assert set(found) == set(case) & {*found, "sparse_scores", "head_scores"}
        for name, value in found.items():
            assert value is not None
            torch.testing.assert_close(value.reshape(-1), torch.tensor(case[name]), rtol=1e-6, atol=3e-5)
    assert len(reference["layers"]) == 3

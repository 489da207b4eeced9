"""Contract, rules and schedule of compression."""

from typing import Any

import pytest
from neox_gpt.testing import check_model_change

from neox_core.testing import assert_light, load_only


def block(
    shared: dict[str, Any], params: dict[str, Any] | None = None, modules: tuple[str, ...] = ("*",)
) -> dict[str, Any]:
    group: dict[str, Any] = {"modules": list(modules)}
    if params is not None:
        group["params"] = params
    return {"shared_parameters": {"enabled": True, **shared}, "different_groups": {"g": group}}


WEIGHTS = {
    "symmetric": block({"quantize_groups": 4}),
    "asymmetric": block({"quantization_type": "asymmetric", "quantize_weight_in_forward": True}, {"target_bits": 4}),
    "stochastic": block({"rounding": "stochastic"}, {"start_bits": 6, "target_bits": 4, "quantization_period": 2}),
    "ternary": block({"quantize_groups": 2}, {"start_bits": 2, "target_bits": 2}),
    "binary": block({"quantize_groups": 8}, {"start_bits": 1, "target_bits": 1}, (r"layers.\w+.mlp",)),
    "mixed": block({"fp16_mixed_quantize": {"enabled": True, "quantize_change_ratio": 0.1}}, {"target_bits": 7}),
    "late": block({"schedule_offset": 50}),
}
ACTIVATIONS = {
    "dynamic": block({"range_calibration": "dynamic"}),
    "static": block({"range_calibration": "static", "quantization_type": "asymmetric"}, {"bits": 6}),
    "static, late": block({"range_calibration": "static", "schedule_offset": 4}),
    "dynamic, asymmetric": block({"range_calibration": "dynamic", "quantization_type": "asymmetric"}, {"bits": 4}),
}


SPARSE = {
    "l1": block({}, {"dense_ratio": 0.3}),
    "l1, made now": block({"schedule_offset": 3, "excluded_modules": ["qkv"]}),
    "topk": block({"method": "topk"}),
}
ROWS = {
    "l1": block({}, {"dense_ratio": 0.3}),
    "l1, made now": block({"schedule_offset": 3}, {"dense_ratio": 0.4}),
    "topk": block({"method": "topk"}),
}
HEADS = block({"num_heads": 4}, {"dense_ratio": 0.4}, ("attention.output",))


def test_listing_is_light() -> None:
    assert_light("neox-compression")


@pytest.mark.parametrize("name", WEIGHTS)
def test_weight_quantization_keeps_the_contract(name: str) -> None:
    check_model_change(
        load_only("neox-compression"), "compression", compression_training={"weight_quantization": WEIGHTS[name]}
    )


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_quantization_keeps_the_contract(name: str) -> None:
    check_model_change(
        load_only("neox-compression"),
        "compression",
        compression_training={"activation_quantization": ACTIVATIONS[name]},
    )


@pytest.mark.parametrize(
    "blocks",
    [
        *({"sparse_pruning": each} for each in SPARSE.values()),
        *({"row_pruning": each} for each in ROWS.values()),
        {"head_pruning": HEADS},
        {
            "head_pruning": HEADS,
            "row_pruning": ROWS["topk"],
            "sparse_pruning": SPARSE["topk"],
            "weight_quantization": WEIGHTS["asymmetric"],
            "activation_quantization": ACTIVATIONS["dynamic"],
        },
    ],
)
def test_pruning_keeps_the_contract(blocks: dict[str, Any]) -> None:
    check_model_change(load_only("neox-compression"), "compression", compression_training=blocks)

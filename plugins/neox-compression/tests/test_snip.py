"""snip_momentum against the masks of Neural Compressor 2.4.1, which DeepSpeed 0.19.6 calls, and counted in weights."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from neox_compression.change import Compression
from neox_compression.pruning.blocks import density_at, pruned_blocks
from neox_compression.pruning.pattern import Pattern
from neox_compression.settings import CompressionSettings
from neox_gpt.api import LinearShape
from neox_gpt.testing import check_model_change
from torch import Tensor

from neox_core.config.schema.structure import structure_settings
from neox_core.parallel.tensor import ALONE
from neox_core.testing import load_only

Given = Callable[..., Tensor]


def block(**shared: Any) -> dict[str, Any]:
    return {"sparse_pruning": {"shared_parameters": {"enabled": True, "method": "snip_momentum", **shared}}}


def test_masks_of_several_layers(snip_reference: list[dict[str, Any]], given: Given) -> None:
    """After each step, in every pattern. Where a count lies between two numbers of blocks, theirs may be one lower."""
    for case in snip_reference:
        told = {"schedule_offset": case["first"], "schedule_offset_end": case["last"], "block_pattern": case["pattern"]}
        told |= {"schedule_offset_stride": case["stride"], "dense_ratio": case["density"]}
        settings = structure_settings(CompressionSettings, {"compression_training": block(**told)}, path="")
        change, layers = Compression(settings), []
        for index, (outputs, inputs) in enumerate(case["shapes"]):
            shape = LinearShape(f"layers.{index}.mlp.up", inputs, outputs, "outputs")
            layers.append(change.change(shape, ALONE))
        size = 4 if case["pattern"] != "2:4" else 2
        for step, wanted in enumerate(case["masks"]):
            for own in layers:
                own.at_step(step)
            different = 0
            for index, own in enumerate(layers):
                weight = (given(10 * step + index, *case["shapes"][index]) * (index + 1)).requires_grad_()
                own.change_weight(weight).backward(given(1000 + 10 * step + index, *case["shapes"][index]))
                mask = "".join(str(int(each)) for each in own.snip_mask.flatten().tolist())
                different += sum(mine != theirs for mine, theirs in zip(mask, wanted[f"l{index}"], strict=True))
            assert different <= size * (step == case["last"] or step > case["last"])
    assert len(snip_reference) == 17


def test_density_falls_exponentially() -> None:
    """From the start to the end in equal factors; the last step has the target itself."""
    assert [density_at(step, 2, 8, 3, 0.25) for step in range(13)] == [
        None, None, 1.0, None, None, 0.5, None, None, 0.25, None, None, None, None,
    ]  # fmt: skip
    for target in (0.1, 0.37, 0.5):
        found = density_at(12, 2, 12, 5, target)
        assert found is not None
        assert abs(found - target) < 1e-12


def test_a_layer_keeps_a_fiftieth(given: Given) -> None:
    """The lowest scores are all in one layer, which keeps 2 percent of its blocks; the other layer loses the rest."""
    low, high = torch.arange(100) / 1000, torch.arange(100) + 1.0
    first, second = pruned_blocks([low, high], Pattern(1, 1), 0.5)
    assert (int(first.sum()), int(second.sum())) == (98, 2)
    assert not first[98:].any()
    assert second[:2].all()


@pytest.mark.parametrize("pattern", ["4x1", "2x8", "1:4"])
def test_it_keeps_the_contract(pattern: str) -> None:
    told = {"schedule_offset": 1, "schedule_offset_end": 5, "block_pattern": pattern, "dense_ratio": 0.8}
    check_model_change(load_only("neox-compression"), "compression", compression_training=block(**told))

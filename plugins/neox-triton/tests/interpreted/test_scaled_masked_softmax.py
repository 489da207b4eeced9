from typing import Any

import pytest
import torch
from neox_gpt.attention.softmax import masked_softmax as reference
from neox_triton.scaled_masked_softmax import KERNEL, masked_softmax


@pytest.mark.parametrize("lead", [(2, 3, 5), (2, 1, 5), (1, 1, 5), (5,), (2, 1, 1)])
def test_equals_the_reference(agrees: Any, draw: Any, lead: tuple[int, ...]) -> None:
    mask = torch.rand(*lead, 123, generator=torch.Generator().manual_seed(2)) < 0.4
    agrees(masked_softmax, reference, draw(2, 3, 5, 123, scale=3.0), mask, 0.3)


def test_a_query_that_sees_nothing_gets_zeros(dtype: torch.dtype) -> None:
    scores = torch.ones(1, 1, 2, 3, dtype=dtype, requires_grad=True)
    y = masked_softmax(scores, torch.tensor([[True] * 3, [False] * 3]), 1.0)
    y.float().square().sum().backward()
    assert y[0, 0, 0].tolist() == [0.0] * 3
    assert y.isfinite().all()
    assert scores.grad.isfinite().all()


@pytest.mark.parametrize("elements", [1, 128, 2048])
def test_rows_are_dealt_to_programs(agrees: Any, draw: Any, tiled: Any, elements: int) -> None:
    tiled(KERNEL.tiling, elements)
    agrees(
        masked_softmax,
        reference,
        draw(1, 3, 7, 40, scale=3.0),
        torch.arange(40) % 5 == torch.arange(7)[:, None] % 4,
        0.3,
    )

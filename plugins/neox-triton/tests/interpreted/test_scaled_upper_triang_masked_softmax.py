from typing import Any

import pytest
import torch
from neox_gpt.attention.softmax import causal_softmax as reference
from neox_triton.scaled_upper_triang_masked_softmax import KERNEL, causal_softmax


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 5), (3, 123), (16, 64)])
def test_equals_the_reference(agrees: Any, draw: Any, queries: int, keys: int) -> None:
    agrees(causal_softmax, reference, draw(1, 2, queries, keys, scale=3.0), 0.3)


def test_of_a_view(agrees: Any, draw: Any) -> None:
    agrees(causal_softmax, reference, draw(2, 5, 5, 3).permute(0, 3, 1, 2).detach().requires_grad_(), 0.3)


def test_large_scores(dtype: torch.dtype) -> None:
    scores = torch.tensor([[[[9.0, 6e4], [6e4, -6e4]]]], dtype=dtype)
    assert causal_softmax(scores, 1.0).tolist() == [[[[1.0, 0.0], [1.0, 0.0]]]]


@pytest.mark.parametrize("elements", [1, 128, 2048])
def test_rows_are_dealt_to_programs(agrees: Any, draw: Any, tiled: Any, elements: int) -> None:
    tiled(KERNEL.tiling, elements)
    agrees(causal_softmax, reference, draw(1, 3, 7, 40, scale=3.0), 0.3)

from typing import Any

import pytest
import torch
from neox_kernels.api import TOLERANCE, compare
from neox_positions.rotary import rotary_pair as reference
from neox_triton.rotary_pair import KERNEL, rotary_pair


def tables(turned: int, *lead: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.rand(*lead, turned // 2, generator=torch.Generator().manual_seed(3)) * 6
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


@pytest.mark.parametrize(("width", "turned"), [(24, 24), (24, 6), (2, 2), (10, 4)])
def test_equals_the_reference(agrees: Any, draw: Any, width: int, turned: int) -> None:
    agrees(rotary_pair, reference, draw(2, 3, 5, width), draw(2, 3, 5, width), *tables(turned, 5))
    packed = draw(2, 5, 3, 3, width).detach().permute(3, 0, 2, 1, 4)  # as a projection holds them
    agrees(rotary_pair, reference, packed[0].requires_grad_(), packed[1].requires_grad_(), *tables(turned, 5))


@pytest.mark.parametrize(("heads", "key_heads"), [(6, 2), (5, 1), (2, 7)])
@pytest.mark.parametrize("block", [8, 2048])
def test_queries_and_keys_have_heads_of_their_own(
    agrees: Any, draw: Any, tiled: Any, heads: int, key_heads: int, block: int
) -> None:
    """In a block of 8, two heads are a program's."""
    tiled(KERNEL.tiling, block)
    agrees(rotary_pair, reference, draw(2, heads, 3, 10), draw(2, key_heads, 3, 10), *tables(6, 3))


def test_each_sample_has_positions_of_its_own(agrees: Any, draw: Any) -> None:
    agrees(rotary_pair, reference, draw(3, 2, 5, 8), draw(3, 1, 5, 8), *tables(8, 3, 1, 5))


def test_one_launch_forward_and_one_backward() -> None:
    meta = torch.device("meta")
    for arguments in KERNEL.examples(torch.bfloat16, meta, large=True):
        with KERNEL.recording() as launches:
            results = KERNEL(*arguments)
            torch.autograd.grad(results, arguments[:2], [torch.empty_like(each) for each in results])
        assert [each.constants["BACK"] for each in launches] == [False, True]


def test_of_the_pair_one_may_be_of_another_dtype_or_need_no_gradient(draw: Any) -> None:
    query, key = draw(1, 3, 5, 8).detach().bfloat16().requires_grad_(), draw(1, 2, 5, 8).detach()
    assert compare(rotary_pair, reference, (query, key, *tables(8, 5))).error <= TOLERANCE[torch.bfloat16]
    cos, sin = tables(8, 5)
    rotary_pair(query, key, cos, sin)[0].float().sum().backward()
    mine, query.grad = query.grad, None
    reference(query, key, cos, sin)[0].float().sum().backward()
    assert torch.allclose(mine.float(), query.grad.float(), atol=1e-2)

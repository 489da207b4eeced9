from typing import Any

import pytest
import torch
from neox_positions.rotary import rotary as reference
from neox_triton.rotary import KERNEL, rotary


def tables(turned: int, *lead: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.rand(*lead, turned // 2, generator=torch.Generator().manual_seed(3)) * 6
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


@pytest.mark.parametrize(("width", "turned"), [(24, 24), (24, 6), (2, 2), (10, 4)])
def test_equals_the_reference(agrees: Any, draw: Any, width: int, turned: int) -> None:
    agrees(rotary, reference, draw(2, 3, 5, width), *tables(turned, 5))
    packed = draw(2, 5, 3, 3, width).detach().permute(3, 0, 2, 1, 4)  # as a projection holds them
    agrees(rotary, reference, packed[1].requires_grad_(), *tables(turned, 5))


def test_each_sample_has_positions_of_its_own(agrees: Any, draw: Any) -> None:
    agrees(rotary, reference, draw(3, 2, 5, 8), *tables(8, 3, 1, 5))


def test_many_heads_are_dealt_to_programs(agrees: Any, draw: Any, tiled: Any) -> None:
    tiled(KERNEL.tiling, 8)
    agrees(rotary, reference, draw(1, 5, 3, 8), *tables(8, 3))

"""FlexAttention by a layout against the blocked executor. It is compiled once; elsewhere its own eager form runs."""

import pytest
import torch
from neox_gpt.api import SparseUse
from neox_gpt.attention import flex
from neox_gpt.attention.blocked import blocked_attention
from neox_gpt.attention.scores import Request
from neox_gpt.attention.sparse import BlockTable
from neox_sparse_attention.flex import KERNEL, block_mask
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention


def draw(heads: int, kv_heads: int, seq: int, dim: int = 32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(2, each, seq, dim, generator=generator) for each in (heads, kv_heads, kv_heads)]


def table(heads: int, seq: int, block: int, density: float = 0.5) -> BlockTable:
    blocks = -(-seq // block)
    drawn = torch.rand(heads, blocks, blocks, generator=torch.Generator().manual_seed(9))
    return BlockTable((drawn < density).tril(), block)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex, "compiled", lambda: flex_attention)


@torch.no_grad()
def test_compiled_on_a_cpu_for_inference() -> None:
    inputs, request = draw(4, 2, 300), Request(0.2, blocks=table(4, 300, 16))
    torch.testing.assert_close(KERNEL(*inputs, request), blocked_attention(*inputs, request), rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("seq", "block", "density"), [(130, 16, 0.3), (256, 128, 0.9), (257, 256, 1.0), (70, 64, 0.0)])
@torch.no_grad()
def test_equals_the_blocked_one(eager: None, seq: int, block: int, density: float) -> None:
    inputs, request = draw(2, 2, seq), Request(0.2, blocks=table(2, seq, block, density))
    torch.testing.assert_close(KERNEL(*inputs, request), blocked_attention(*inputs, request), rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@torch.no_grad()
def test_documents_and_a_bias(eager: None) -> None:
    documents = (torch.arange(200) > 70).long().expand(2, -1)
    positions = torch.cat([torch.arange(71), torch.arange(129)]).expand(2, -1)
    request = Request(0.2, lambda _: lambda h, q, k: -0.1 * (h + 1) * (q - k), first_head=2, blocks=table(2, 200, 32))
    request.documents, request.positions = documents, positions
    inputs = draw(2, 2, 200)
    torch.testing.assert_close(KERNEL(*inputs, request), blocked_attention(*inputs, request), rtol=0, atol=1e-5)


def test_only_tiles_with_something_in_them_are_computed() -> None:
    """A window of 128 tokens in 1024: the tile of the queries and the one before it, of 8 x 8."""
    place = torch.arange(64)
    back = place[:, None] - place
    mask = block_mask(BlockTable(((back >= 0) & (back <= 8))[None], 16), 1024)
    assert mask.kv_num_blocks.tolist() == [[[1, 2, 2, 2, 2, 2, 2, 2]]]
    assert mask.full_kv_num_blocks is not None
    assert not mask.full_kv_num_blocks.any()
    dense = block_mask(BlockTable(torch.ones(1, 64, 64, dtype=torch.bool).tril(), 16), 1024)
    assert dense.kv_num_blocks.tolist() == [[[1] * 8]]
    assert dense.full_kv_num_blocks.tolist() == [[list(range(8))]]


def test_what_it_cannot_do_is_said() -> None:
    inputs = draw(1, 1, 96)
    assert KERNEL.why_not_for(SparseUse((16, 48, 256), bias=True, dropout=True)) == (
        "its tiles of 128 tokens do not fit blocks of 48",
        "it drops no attention probabilities",
    )
    assert KERNEL.why_not_for(SparseUse((16, 256), bias=True)) == ()
    with pytest.raises(ValueError, match="blocks of 48"):
        KERNEL(*inputs, Request(0.2, blocks=table(1, 96, 48)))
    with pytest.raises(ValueError, match="drops no attention"):
        KERNEL(*inputs, Request(0.2, dropout=0.1, keys=torch.ones(2).long(), blocks=table(1, 96, 16)))
    assert KERNEL.why_not((1, 2, 96, 32), torch.float32, torch.device("cpu"))
    assert not KERNEL.why_not((1, 2, 96, 32), torch.bfloat16, torch.device("cuda"))

from typing import Any

import pytest
import torch
from neox_gpt.api import SparseUse
from neox_gpt.attention.blocked import blocked_attention as reference
from neox_gpt.attention.scores import Request
from neox_gpt.attention.sparse import BlockTable
from neox_gpt.dropout import attention_site
from neox_triton.block_sparse_attention import KERNEL, block_sparse_attention
from neox_triton.sparse_lists import plan_of

from neox_core.parallel.sample_keys import sample_keys


def table(heads: int, blocks: int, block: int, density: float = 0.6) -> BlockTable:
    drawn = torch.rand(heads, blocks, blocks, generator=torch.Generator().manual_seed(9))
    return BlockTable((drawn < density).tril(), block)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "seq", "width", "block"),
    [(2, 2, 48, 32, 16), (4, 2, 37, 40, 16), (2, 1, 100, 64, 64), (1, 1, 40, 256, 32)],
)
def test_equals_the_reference(
    agrees: Any, draw: Any, heads: int, kv_heads: int, seq: int, width: int, block: int
) -> None:
    inputs = draw(1, heads, seq, width), draw(1, kv_heads, seq, width), draw(1, kv_heads, seq, width)
    request = Request(width**-0.5, blocks=table(heads, -(-seq // block), block))
    agrees(block_sparse_attention, reference, *inputs, request)


def test_documents_and_dropout(agrees: Any, draw: Any) -> None:
    request = Request(0.2, first_head=3, dropout=0.3, site=attention_site(2), blocks=table(2, 2, 32))
    request.keys = sample_keys(5, 7, 2, "cpu")
    request.documents = torch.tensor([[0] * 20 + [1] * 21, [0] * 41])
    agrees(block_sparse_attention, reference, *(draw(2, 2, 41, 24) for _ in range(3)), request)


def test_a_block_of_128_is_worked_on_in_tiles(draw: Any) -> None:
    inputs, request = [draw(1, 1, 130, 32) for _ in range(3)], Request(0.2, blocks=table(1, 2, 128, 1.0))
    pairs = zip(*((op(*inputs, request), op) for op in (block_sparse_attention, reference)), strict=True)
    (mine, theirs), _ = pairs
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)
    grads = (torch.autograd.grad(out.square().sum(), inputs) for out in (mine, theirs))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


def test_queries_that_see_nothing_get_zeros(draw: Any) -> None:
    blocks = table(1, 3, 16, 1.0)
    empty = BlockTable(blocks.layout.index_fill(1, torch.tensor([1]), False), 16)
    query, key, value = (draw(1, 1, 48, 16) for _ in range(3))
    out = block_sparse_attention(query, key, value, Request(1.0, blocks=empty))
    out.sum().backward()
    assert not out[:, :, 16:32].any()
    assert not query.grad[:, :, 16:32].any()
    assert key.grad.isfinite().all()


def test_what_it_cannot_do_is_said(draw: Any) -> None:
    inputs = [draw(1, 1, 48, 16) for _ in range(3)]
    assert KERNEL.why_not_for(SparseUse((16, 128), dropout=True)) == ()
    assert KERNEL.why_not_for(SparseUse((24,), bias=True)) == (
        "it has no blocks of 24 tokens",
        "it adds no bias to the scores",
    )
    with pytest.raises(ValueError, match="no blocks of 24"):
        block_sparse_attention(*inputs, Request(1.0, blocks=table(1, 2, 24)))
    with pytest.raises(ValueError, match="adds no bias"):
        block_sparse_attention(*inputs, Request(1.0, lambda _: lambda h, q, k: q - k, blocks=table(1, 3, 16)))
    with pytest.raises(ValueError, match="within a softcap"):
        block_sparse_attention(*inputs, Request(1.0, blocks=table(1, 3, 16), softcap=5.0))
    assert any("512" in each for each in KERNEL.why_not((1, 4, 64, 512), torch.float32, torch.device("cpu")))


def test_a_key_that_all_see_is_split(agrees: Any, draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of small blocks are grouped, the long lists of global columns dealt to programs, and heads share keys."""
    monkeypatch.setattr("neox_triton.sparse_lists.LONGEST_LIST", 32)
    layout = torch.eye(7, dtype=torch.bool).repeat(2, 1, 1)
    layout[:, :, 0] = True
    layout[1, 5:, 4] = True
    inputs = draw(1, 2, 105, 16), draw(1, 1, 105, 16), draw(1, 1, 105, 16)
    agrees(block_sparse_attention, reference, *inputs, Request(0.2, blocks=BlockTable(layout, 16)))


def test_who_works_on_which_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neox_triton.sparse_lists.LONGEST_LIST", 128)
    layout = torch.eye(8, dtype=torch.bool)
    layout[:, 0] = True
    plan = plan_of(BlockTable(layout.expand(2, -1, -1), 64), 1)
    assert plan.work.columns.tolist() == [0] * 4 + [*range(1, 8)] + [8] * 4 + [*range(9, 16)]  # 8 blocks by twos
    assert plan.work.segments.tolist() == [0, 1, 2, 3, *[0] * 7] * 2
    assert plan.work.slots.tolist() == [0, 1, 2, 3, *[-1] * 7, 4, 5, 6, 7, *[-1] * 7]
    assert plan.work.shared.tolist() == [0, 8]
    assert plan.work.first_slots.tolist() == [0, 4]
    assert plan.work.num_slots == 8


def test_rows_of_small_blocks_are_grouped() -> None:
    layout = torch.tensor(
        [[[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [0, 0, 1, 0, 0], [1, 0, 0, 1, 0], [0, 1, 0, 0, 1]]]
    ).bool()
    plan = plan_of(BlockTable(layout, 16), 1)
    assert plan.rows.starts.tolist() == [0, 4, 6]
    assert plan.rows.blocks.tolist() == [0, 1, 2, 3, 1, 4]
    assert plan.rows.bits.tolist() == [0b1011, 0b0010, 0b0100, 0b1000, 0b0001, 0b0001]
    assert plan.columns.bits.tolist() == [0b0001, 0b0011, 0b0100, 0b1001, 0b0010, 0b0001]


def test_of_views_of_one_projection(draw: Any) -> None:
    packed = draw(2, 40, 3, 3, 16)  # [batch, seq, heads, which, dim]
    request = Request(0.2, blocks=table(3, 3, 16))
    found = []
    for op in (block_sparse_attention, reference):
        out = op(*packed.permute(3, 0, 2, 1, 4), request)
        found.append((out, *torch.autograd.grad(out.square().sum(), packed)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    assert found[0][0].transpose(1, 2).is_contiguous()  # as the projection behind it reads it


def test_heads_that_lie_further_apart_than_32_bits_count(draw: Any) -> None:
    """The third head of the queries begins 2**31 numbers after the first; nobody touches the memory in between."""
    apart = torch.empty(2**31 + 2**10, dtype=torch.float16).as_strided((1, 3, 20, 16), (1, 2**30, 16, 1))
    near = draw(1, 3, 20, 16).detach().half()
    apart.copy_(near)
    request = Request(0.2, blocks=table(3, 2, 16))
    grads = []
    for query in (apart, near):
        inputs = [each.requires_grad_() for each in (query, near.detach().clone(), near.detach().clone())]
        out = block_sparse_attention(*inputs, request)
        out.square().sum().backward()
        grads.append((out, *(each.grad for each in inputs)))
    for one, other in zip(*grads, strict=True):
        assert torch.equal(one, other)


def test_dropout_of_nearly_all_drops_all(draw: Any) -> None:
    request = Request(0.2, dropout=1 - 2**-40, keys=sample_keys(5, 7, 1, "cpu"), blocks=table(1, 2, 16))
    assert not block_sparse_attention(*(draw(1, 1, 20, 16) for _ in range(3)), request).any()

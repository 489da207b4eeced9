"""Block-sparse attention against dense attention under the same mask, in float64."""

import random
import subprocess
import sys

import pytest
import torch
from neox_gpt.attention import blocked
from neox_gpt.attention.blocked import blocked_attention
from neox_gpt.attention.scores import Request, attend
from neox_gpt.attention.sparse import BlockTable
from neox_gpt.dropout import attention_site, drop_probabilities
from torch import Tensor
from torch.nn import functional as F

from neox_core.parallel.sample_keys import sample_keys


def dense(query: Tensor, key: Tensor, value: Tensor, layout: Tensor, block: int, bias: Tensor | None = None) -> Tensor:
    heads, seq, dim = query.shape[1:]
    key, value = (each.repeat_interleave(heads // each.shape[1], 1) for each in (key, value))
    seen = layout.repeat_interleave(block, 1).repeat_interleave(block, 2)[:, :seq, :seq].tril()
    scores = query @ key.transpose(-1, -2) / dim**0.5
    if bias is not None:
        scores = scores + bias
    return torch.where(seen, scores.masked_fill(~seen, -1e30).softmax(-1), 0.0) @ value


def draw(heads: int, key_heads: int, seq: int, dim: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    shapes = [(2, heads, seq, dim), (2, key_heads, seq, dim), (2, key_heads, seq, dim)]
    return [torch.randn(shape, generator=generator, dtype=dtype, requires_grad=True) for shape in shapes]


def random_layout(heads: int, blocks: int, density: float) -> Tensor:
    return (torch.rand(heads, blocks, blocks, generator=torch.Generator().manual_seed(9)) < density).tril()


def window(blocks: int, width: int) -> Tensor:
    back = torch.arange(blocks)[:, None] - torch.arange(blocks)
    return (back >= 0) & (back < width)


GLOBAL = window(13, 2) | (torch.arange(13) % 4 == 3) & window(13, 13)
TABLES = {
    "gaps in the diagonal": (random_layout(3, 9, 0.6), 16, False),
    "a window": (window(13, 3).expand(4, -1, -1), 16, True),
    "a window of one": (window(7, 1)[None], 32, False),
    "a window and blocks that all see": (torch.stack([GLOBAL, window(13, 13), GLOBAL]), 16, True),
    "random ones too": (random_layout(3, 10, 0.9) | window(10, 4), 8, True),
    "all": (window(5, 5).expand(2, -1, -1), 16, True),
}


@pytest.mark.parametrize("name", TABLES)
def test_groups_of_rows_see_what_the_layout_says(name: str) -> None:
    layout, block, grouped = TABLES[name]
    table = BlockTable(layout, block)
    assert torch.equal(table.layout, layout)
    made = torch.zeros_like(layout.contiguous())
    for rows in table.rows:
        hidden = F.pad(rows.hidden, (0, rows.column.shape[1] - rows.hidden.shape[2]))
        for head, first, columns, unseen in zip(rows.head, rows.row, rows.column, hidden, strict=True):
            assert not made[head, first : first + rows.tall].any()
            for below in range(rows.tall):
                seen = columns[~unseen[below] & (columns <= first + below)]
                made[head, first + below, seen] = True
            if rows.diagonal:
                assert torch.equal(columns[-rows.tall :], first + torch.arange(rows.tall))
    assert torch.equal(made, layout)
    assert any(rows.tall > 1 for rows in table.rows) == grouped


def test_what_a_table_holds_goes_with_the_blocks_that_are_seen() -> None:
    """The layout of a window of 3 in 2048 blocks has 4 M cells a head, and 6141 of them are seen."""
    table = BlockTable(window(2048, 3).expand(8, -1, -1), 16)
    held = [getattr(rows, name) for rows in table.rows for name in ("head", "row", "column", "hidden")]
    assert sum(each.nbytes for each in held) < 2 * 8 * 6141 * 8
    assert "layout" not in vars(table)


def test_beginnings_are_kept_while_they_are_in_use() -> None:
    table = BlockTable(window(30, 3)[None], 16)
    for blocks in range(1, 30):
        assert torch.equal(table.first(blocks).layout, window(blocks, 3)[None])
    assert table.first(29) is table.first(29)
    assert len(table._shorter) < 5


@pytest.mark.parametrize("density", [0.0, 0.2, 0.7, 1.0])
@pytest.mark.parametrize(
    ("heads", "key_heads", "seq", "dim", "block"),
    [(4, 4, 64, 8, 16), (4, 2, 100, 16, 16), (2, 1, 37, 5, 4), (1, 1, 3, 4, 16), (3, 3, 50, 32, 1)],
)
def test_equals_dense_attention(
    monkeypatch: pytest.MonkeyPatch, density: float, heads: int, key_heads: int, seq: int, dim: int, block: int
) -> None:
    monkeypatch.setitem(blocked.SCORES, "cpu", max(40 * block**2, 2**13))  # so that a row of blocks is one of many
    layout = random_layout(heads, -(-seq // block), density)
    inputs = draw(heads, key_heads, seq, dim)
    made = blocked_attention(*inputs, Request(dim**-0.5, blocks=BlockTable(layout, block)))
    wanted = dense(*inputs, layout, block)
    torch.testing.assert_close(made, wanted, rtol=0, atol=1e-12)
    grad = torch.randn(made.shape, generator=torch.Generator().manual_seed(1), dtype=made.dtype)
    for one, other in zip(*(torch.autograd.grad(out, inputs, grad) for out in (made, wanted)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("density", [0.2, 0.7, 1.0])
@pytest.mark.parametrize(
    ("heads", "key_heads", "seq", "dim", "block"),
    [(4, 4, 64, 8, 16), (4, 2, 100, 16, 16), (2, 1, 37, 5, 4), (3, 3, 50, 32, 1)],
)
@pytest.mark.parametrize("filled_up", [False, True])
def test_of_tokens_on_both_sides_it_equals_dense_attention(
    density: float, heads: int, key_heads: int, seq: int, dim: int, block: int, filled_up: bool
) -> None:
    """With the last tokens of a sample in a document of their own, and a bias that tells before from after."""
    blocks = -(-seq // block)
    layout = torch.rand(heads, blocks, blocks, generator=torch.Generator().manual_seed(9)) < density
    if density == 0.7:  # in groups of rows
        layout |= torch.eye(blocks, dtype=torch.bool)
    inputs = draw(heads, key_heads, seq, dim)
    place = torch.arange(seq)
    documents = (place[None] >= torch.tensor([[seq - 3], [seq // 2]])).long() if filled_up else None
    slope = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    table = BlockTable(layout, block, causal=False)
    request = Request(
        dim**-0.5,
        bias_of=lambda prepared: lambda head, query_at, key_at: prepared * (head + 1) * (key_at - query_at).double(),
        prepared=slope,
        documents=documents,
        blocks=table,
    )
    made = blocked_attention(*inputs, request)
    query, key, value = inputs
    key, value = (each.repeat_interleave(heads // key_heads, 1) for each in (key, value))
    seen = layout.repeat_interleave(block, 1).repeat_interleave(block, 2)[:, :seq, :seq].expand(2, -1, -1, -1)
    assert torch.equal(table.seen(0, seq), seen[0])
    if documents is not None:
        seen = seen & (documents[:, :, None] == documents[:, None, :])[:, None]
    bias = slope * (torch.arange(heads) + 1)[:, None, None] * (place - place[:, None])
    scores = query @ key.mT / dim**0.5 + bias
    wanted = torch.where(seen, scores.masked_fill(~seen, -1e30).softmax(-1), 0.0) @ value
    torch.testing.assert_close(made, wanted, rtol=0, atol=1e-12)
    grad = torch.randn(made.shape, generator=torch.Generator().manual_seed(1), dtype=made.dtype)
    for one, other in zip(*(torch.autograd.grad(out, [*inputs, slope], grad) for out in (made, wanted)), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_fp32_is_within_1e_5_of_float64() -> None:
    layout = random_layout(4, 16, 0.4)
    inputs = draw(4, 4, 256, 64, torch.float32)
    made = blocked_attention(*inputs, Request(0.125, blocks=BlockTable(layout, 16)))
    exact = [each.detach().double().requires_grad_() for each in inputs]
    wanted = dense(*exact, layout, 16)
    torch.testing.assert_close(made.double(), wanted, rtol=0, atol=1e-5)
    grads = torch.autograd.grad(made.sum(), inputs)
    for one, other in zip(grads, torch.autograd.grad(wanted.sum(), exact), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=0, atol=1e-5)


def test_queries_that_see_nothing_give_zeros() -> None:
    layout = random_layout(2, 4, 1.0)
    layout[1, 2] = False
    query, key, value = draw(2, 2, 64, 8)
    made = blocked_attention(query, key, value, Request(1.0, blocks=BlockTable(layout, 16)))
    assert not made[:, 1, 32:48].any()
    made.sum().backward()
    assert not query.grad[:, 1, 32:48].any()
    assert torch.isfinite(key.grad).all()


def test_a_bias_with_trained_weights() -> None:
    layout = random_layout(4, 6, 0.6)
    inputs = draw(4, 4, 90, 8)
    table = torch.randn(4, 96, dtype=torch.float64, generator=torch.Generator().manual_seed(2), requires_grad=True)

    def bias(prepared: Tensor):
        return lambda head, query_at, key_at: prepared[head, query_at - key_at]

    # the table's heads are the model's 4 to 7
    request = Request(
        8**-0.5,
        lambda prepared: bias(torch.cat([torch.zeros_like(prepared), prepared])),
        table,
        first_head=4,
        blocks=BlockTable(layout, 16),
    )
    made = blocked_attention(*inputs, request)
    at = torch.arange(90)
    wanted = dense(*inputs, layout, 16, table[:, (at[:, None] - at).clamp(min=0)])
    torch.testing.assert_close(made, wanted, rtol=0, atol=1e-12)
    grads = (torch.autograd.grad(out.square().sum(), (table, *inputs)) for out in (made, wanted))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_a_bias_of_several_tensors_of_which_one_is_of_whole_numbers() -> None:
    layout = random_layout(2, 3, 0.9)
    inputs = draw(2, 2, 48, 8)
    slopes = torch.tensor([0.5, 2.0], dtype=torch.float64, requires_grad=True)
    order = torch.tensor([1, 0])
    bias = lambda pair: lambda head, q, k: -pair[0][pair[1][head]] * (q - k)  # noqa: E731
    made = blocked_attention(*inputs, Request(8**-0.5, bias, (slopes, order), blocks=BlockTable(layout, 16)))
    at = torch.arange(48)
    wanted = dense(*inputs, layout, 16, -slopes[order][:, None, None] * (at[:, None] - at))
    torch.testing.assert_close(made, wanted, rtol=0, atol=1e-12)
    one, other = (torch.autograd.grad(out.square().sum(), slopes)[0] for out in (made, wanted))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_the_first_blocks_of_a_table() -> None:
    layout = random_layout(2, 8, 0.5)
    query, key, value = draw(2, 2, 40, 8)
    made = blocked_attention(query, key, value, Request(8**-0.5, blocks=BlockTable(layout, 16)))
    torch.testing.assert_close(made, dense(query, key, value, layout[:, :3, :3], 16), rtol=0, atol=1e-12)


def test_what_late_queries_see() -> None:
    layout = random_layout(2, 4, 0.5)
    whole = layout.repeat_interleave(16, 1).repeat_interleave(16, 2).tril()
    table = BlockTable(layout, 16)
    assert torch.equal(table.seen(21, 50), whole[:, 21:50, :50])
    for each in (*range(20, 60), *range(20, 60)):  # token by token, then another text
        assert torch.equal(table.seen(each, each + 1), whole[:, each : each + 1, : each + 1])


MEASURE = """
import resource, torch
from neox_gpt.attention.blocked import blocked_attention
from neox_gpt.attention.scores import Request
from neox_gpt.attention.sparse import BlockTable

torch.set_num_threads(1)
place = torch.arange(1024)
table = BlockTable(((place[:, None] - place) < 2).tril()[None], 64)
torch.manual_seed(0)
inputs = [torch.randn(1, 1, 65536, 16, requires_grad=True) for _ in range(3)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
made = blocked_attention(*inputs, Request(0.25, blocks=table))
made.sum().backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
some = [each[:, :, -192:].detach() for each in inputs]
seen = table.seen(65536 - 192, 65536)[:, :, -192:]
scores = (some[0] @ some[1].mT * 0.25).masked_fill(~seen, -torch.inf)
assert (scores.softmax(-1) @ some[2] - made[:, :, -192:])[:, :, 64:].abs().max() < 1e-5
assert torch.isfinite(inputs[1].grad).all()
"""


def test_memory_goes_with_the_named_blocks() -> None:
    """A local layout at 65,536 tokens, measured in a process of its own: dense scores of one head would be 16,384 MiB,
    and a mask of them 4,096."""
    run = [sys.executable, "-c", MEASURE]
    done = subprocess.run(run, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 128  # inputs, gradients and results are 4 MiB each


@pytest.mark.parametrize("seed", range(26))
def test_whatever_is_asked_for_equals_dense_attention_in_fp32(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Layouts, sizes, grouped heads, bias, documents and dropout in any combination, out and all gradients to 1e-5."""
    draw = random.Random(seed)
    block, groups, kv_heads = draw.choice([1, 4, 16, 24]), draw.choice([1, 2, 3]), draw.choice([1, 2])
    seq, dim, heads = draw.randint(1, 90 if block > 1 else 30), draw.choice([3, 8, 32]), groups * kv_heads
    monkeypatch.setitem(blocked.SCORES, "cpu", draw.choice([1, 2**10, 2**18]))
    torch.manual_seed(seed)
    layout = random_layout(heads, -(-seq // block), draw.choice([0.1, 0.5, 1.0]))
    if draw.random() < 0.5:  # else no rows are grouped
        layout |= window(layout.shape[1], draw.choice([1, 2, 5]))
    inputs = [torch.randn(2, each, seq, dim, requires_grad=True) for each in (heads, kv_heads, kv_heads)]
    slopes = torch.rand(heads + 2, requires_grad=True)
    request = Request(dim**-0.5, first_head=2, blocks=BlockTable(layout, block))
    wide = [each.detach().double().requires_grad_() for each in (*inputs, slopes)]
    query, key, value, wide_slopes = wide
    key, value = (each.repeat_interleave(groups, 1) for each in (key, value))
    seen = layout.repeat_interleave(block, 1).repeat_interleave(block, 2)[:, :seq, :seq].tril().expand(2, -1, -1, -1)
    scores = query @ key.mT * request.scale
    at = torch.arange(seq)
    if draw.random() < 0.5:
        request.bias_of, request.prepared = lambda given: lambda h, q, k: -given[h] * (q - k), slopes
        scores = scores - wide_slopes[2:, None, None] * (at[:, None] - at)
    if draw.random() < 0.5:
        request.documents = torch.stack([at >= draw.randint(0, seq), at // draw.randint(1, 40)]).long()
        seen = seen & (request.documents[:, None, :, None] == request.documents[:, None, None, :])
    probs = torch.where(seen, scores.masked_fill(~seen, -1e30).softmax(-1), 0.0)
    if draw.random() < 0.5:
        request.dropout, request.keys, request.site = 0.3, sample_keys(seed, 0, 2, "cpu"), attention_site(1)
        probs = drop_probabilities(probs, 0.3, request.keys, request.site, first_head=2)
    made, wanted = attend(*inputs, request), probs @ value
    torch.testing.assert_close(made.double(), wanted, rtol=0, atol=1e-5)
    assert not made.movedim(1, 2)[~seen.any(-1).movedim(1, 2)].any()
    weight = torch.randn_like(made)
    narrow = torch.autograd.grad(made, (*inputs, slopes), weight, allow_unused=True)
    for one, other in zip(narrow, torch.autograd.grad(wanted, wide, weight.double(), allow_unused=True), strict=True):
        if other is None:
            assert one is None
        else:
            largest = max(1.0, float(other.abs().max()))  # a slope's gradient is a sum over all scores
            torch.testing.assert_close(one.double(), other, rtol=0, atol=1e-5 * largest)


def test_dropout_drops_what_dense_attention_drops() -> None:
    layout = random_layout(3, 5, 0.6)
    inputs = draw(3, 3, 75, 8)
    keys = sample_keys(7, 2, 2, "cpu")
    blocks = BlockTable(layout, 16)
    request = Request(8**-0.5, dropout=0.3, keys=keys, site=attention_site(2), first_head=3, blocks=blocks)
    made = blocked_attention(*inputs, request)
    query, key, value = inputs
    seen = layout.repeat_interleave(16, 1).repeat_interleave(16, 2)[:, :75, :75].tril()
    scores = query @ key.transpose(-1, -2) / 8**0.5
    probs = torch.where(seen, scores.masked_fill(~seen, -1e30).softmax(-1), 0.0)
    wanted = drop_probabilities(probs, 0.3, keys, attention_site(2), first_head=3) @ value
    torch.testing.assert_close(made, wanted, rtol=0, atol=1e-12)
    assert (made != blocked_attention(*inputs, Request(8**-0.5, blocks=BlockTable(layout, 16)))).any()
    grads = (torch.autograd.grad(out.square().sum(), inputs) for out in (made, wanted))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def test_documents_and_positions_within_them() -> None:
    layout = random_layout(2, 5, 0.7)
    inputs = draw(2, 2, 70, 8)
    documents = torch.tensor([[0] * 30 + [1] * 40, [0] * 70])
    positions = torch.stack([torch.cat([torch.arange(30), torch.arange(40)]), torch.arange(70)])
    request = Request(
        8**-0.5,
        lambda _: lambda head, q, k: -0.1 * (head + 1) * (q - k),
        documents=documents,
        positions=positions,
        blocks=BlockTable(layout, 16),
    )
    made = attend(*inputs, request)
    query, key, value = inputs
    seen = layout.repeat_interleave(16, 1).repeat_interleave(16, 2)[:, :70, :70].tril()
    seen = seen & (documents[:, None, :, None] == documents[:, None, None, :])
    distance = positions[:, None, :, None] - positions[:, None, None, :]
    scores = query @ key.transpose(-1, -2) / 8**0.5 - 0.1 * torch.tensor([1, 2])[:, None, None] * distance
    wanted = torch.where(seen, scores.masked_fill(~seen, -1e30).softmax(-1), 0.0) @ value
    torch.testing.assert_close(made, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("new", [1, 7, 64])
def test_the_last_queries_alone_are_as_with_all_others(new: int) -> None:
    layout = random_layout(2, 4, 0.5)
    layout[1, 3] = False
    query, key, value = draw(2, 2, 64, 8)
    request = Request(8**-0.5, blocks=BlockTable(layout, 16))
    whole = attend(query, key, value, request)
    torch.testing.assert_close(attend(query[:, :, -new:], key, value, request), whole[:, :, -new:], rtol=0, atol=1e-12)

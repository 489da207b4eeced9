"""Every path of attention against the textbook's in float64."""

import math
from typing import Any

import pytest
import torch
from neox_gpt.attention import scores
from neox_gpt.attention.flex import causal_mask, document_mask
from neox_gpt.attention.scores import Request, attend
from neox_gpt.dropout import drop_probabilities
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from neox_core.parallel.sample_keys import sample_keys

SEQ = 13


def textbook(query: Tensor, key: Tensor, value: Tensor, request: Request) -> Tensor:
    """softmax(scale * q k + bias, where allowed) v, written out with whole tables in float64."""
    query, key, value = query.double(), key.double(), value.double()
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    table = request.scale * query @ key.transpose(2, 3)
    if request.softcap is not None:
        table = request.softcap * torch.tanh(table / request.softcap)
    batch, heads, new, total = table.shape
    for sample in range(batch):
        for row in range(new):
            at = total - new + row
            for column in range(total):
                same = request.documents is None or request.documents[sample, at] == request.documents[sample, column]
                far = request.window is not None and at - column > request.window
                if column > at or not same or far:
                    table[sample, :, row, column] = -math.inf
                elif request.bias is not None:
                    place = torch.arange(total) if request.positions is None else request.positions[sample]
                    for head in range(heads):
                        index = torch.tensor(head + request.first_head)
                        table[sample, head, row, column] += request.bias(index, place[at], place[column])
    probs = table.softmax(-1)
    return (
        drop_probabilities(probs, request.dropout, request.keys, request.site, request.first_head, total - new) @ value
    )


def slope(head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    return -(0.5**head) * (query - key)


DOCUMENTS = torch.tensor([[0] * 5 + [1] * 8, [0] * 2 + [1] + [2] * 10])
PLACES = torch.tensor([[*range(5), *range(8)], [0, 1, 0, *range(10)]])
REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bias": {"bias_of": lambda _: slope},
    "bias of later heads": {"bias_of": lambda _: slope, "first_head": 4},
    "documents": {"documents": DOCUMENTS},
    "documents and bias": {"documents": DOCUMENTS, "positions": PLACES, "bias_of": lambda _: slope},
    "dropout": {"dropout": 0.4, "keys": sample_keys(3, 5, 2, "cpu"), "site": 7},
    "window": {"window": 4},
    "soft cap": {"softcap": 0.7},
    "soft cap and bias in a window": {"softcap": 0.7, "window": 4, "bias_of": lambda _: slope},
    "window of one": {"window": 1, "documents": DOCUMENTS, "positions": PLACES, "bias_of": lambda _: slope},
    "window and dropout": {"window": 7, "dropout": 0.4, "keys": sample_keys(3, 5, 2, "cpu"), "site": 7},
    "all": {
        "documents": DOCUMENTS,
        "positions": PLACES,
        "bias_of": lambda _: slope,
        "first_head": 2,
        "dropout": 0.3,
        "keys": sample_keys(1, 0, 2, "cpu"),
    },
}


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("at_once", [1, 3 * 8 * SEQ, 10**9])  # one row, a few, all of them
def test_equals_the_textbook(monkeypatch: pytest.MonkeyPatch, name: str, kv_heads: int, at_once: int) -> None:
    monkeypatch.setitem(scores.CHUNK_ELEMENTS, "cpu", at_once)
    query = drawn(2, 4, SEQ, 6, seed=0)
    key, value = (drawn(2, kv_heads, SEQ, 6, seed=seed) for seed in (1, 2))
    request = Request(scale=0.6, **REQUESTS[name])
    expected, got = textbook(query, key, value, request), attend(query, key, value, request)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    wanted = torch.autograd.grad((expected * query.detach().sin()).sum(), (query, key, value))
    for one, other in zip(
        torch.autograd.grad((got * query.detach().sin()).sum(), (query, key, value)), wanted, strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["plain", "bias", "bias of later heads", "window"])
@pytest.mark.parametrize("new", [1, 4])
def test_later_queries_equal_the_textbook(name: str, new: int) -> None:
    query, key, value = drawn(2, 4, new, 6, seed=0), drawn(2, 2, SEQ, 6, seed=1), drawn(2, 2, SEQ, 6, seed=2)
    request = Request(scale=0.6, **REQUESTS[name])
    torch.testing.assert_close(
        attend(query, key, value, request), textbook(query, key, value, request), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("window", [1, 3, 64, 100, 300, 700])
@pytest.mark.parametrize("behind", [2, 63, 64, 65, 500])
def test_windows_of_any_width_are_those_of_a_mask(window: int, behind: int) -> None:
    seq = window + behind
    query, key, value = drawn(2, 4, seq, 6, seed=0), drawn(2, 2, seq, 6, seed=1), drawn(2, 2, seq, 6, seed=2)
    back = torch.arange(seq)[:, None] - torch.arange(seq)
    hidden = (back < 0) | (back > window)
    keys, values = (each.repeat_interleave(2, 1) for each in (key, value))
    expected = (0.6 * query @ keys.mT).masked_fill(hidden, -math.inf).softmax(-1) @ values
    got = attend(query, key, value, Request(scale=0.6, window=window))
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    grad = drawn(*got.shape, seed=3)
    wanted = torch.autograd.grad(expected, (query, key, value), grad)
    found = torch.autograd.grad(got, (query, key, value), grad)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("of", [{"bias_of": lambda _: slope}, {"window": 16}, {"window": 16, "softcap": 2.0}])
def test_what_is_held_grows_with_the_rows_and_not_with_their_square(
    monkeypatch: pytest.MonkeyPatch, of: dict[str, Any]
) -> None:
    """Bytes that autograd keeps for the backward pass, at two lengths; views share theirs."""
    monkeypatch.setitem(scores.CHUNK_ELEMENTS, "cpu", 2000)

    def held(seq: int) -> int:
        query, key, value = (drawn(1, 2, seq, 4, seed=seed) for seed in range(3))
        kept: dict[int, int] = {}

        def keep(x: Tensor) -> Tensor:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            attend(query, key, value, Request(scale=0.5, **of))
        return sum(kept.values())

    assert 0 < held(512) <= 2.2 * held(256)


def test_the_fused_path_is_taken_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout without keys is no dropout, as in evaluation."""
    monkeypatch.setattr(scores, "_by_rows", None)
    query, key, value = (drawn(1, 2, 8, 4, seed=seed) for seed in range(3))
    attend(query, key, value, Request(scale=0.5, dropout=0.5))


@pytest.mark.parametrize("seq", [1, 100, 128, 129, 512, 600])
def test_the_masks_of_flex_attention_are_those_that_torch_makes_from_all_pairs(seq: int) -> None:
    for density in (0.0, 0.002, 0.02, 0.5):
        ends = (torch.rand(3, seq, generator=torch.Generator().manual_seed(seq)) < density).long()
        documents, cpu = ends.cumsum(1) - ends, torch.device("cpu")
        masks = [(document_mask(documents, window), 3) for window in (None, 100, 300)]
        for made, batch in (*masks, *((causal_mask(seq, cpu, window), None) for window in (None, 1, 128, 255, 300))):
            wanted = create_block_mask(made.mask_mod, batch, None, seq, seq, device="cpu")
            pairs = zip(made.as_tuple()[:-1], wanted.as_tuple()[:-1], strict=True)
            assert all(torch.equal(*map(torch.as_tensor, pair)) for pair in pairs if pair != (None, None))

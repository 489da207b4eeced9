"""Layers that see some of the tokens: against layers that see all of them, with the others hidden."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attrs import evolve
from neox_gpt.gpt import GPT
from neox_gpt.routing import chosen
from torch import Tensor

from neox_core.parallel.row import Routing
from neox_core.parallel.sample_keys import sample_keys

Make = Callable[..., GPT]
KEPT, SEQ, BATCH = 7, 24, 3


def by_hiding(model: GPT, tokens: Tensor, keys: Tensor, routing: Routing) -> Tensor:
    """The states after the last block, with every layer over the whole sequence.

    In a routed layer each hidden token is a document of its own, which nobody else sees, and takes back what it was.
    """
    positions, scope = model.scope(tokens, None, keys)
    x = model.embedding(tokens, positions, model.position, keys)
    for layer, block in enumerate(model.layers):
        if layer not in routing.layers:
            x = block(x, model.position, scope, layer)
            continue
        seen = torch.zeros(tokens.shape, dtype=torch.bool)
        for row, kept in zip(seen, chosen(routing, keys, layer, SEQ), strict=True):
            row[kept] = True
        documents = torch.where(seen, 0, torch.arange(1, SEQ + 1))
        after = block(x, model.position, evolve(scope, documents=documents), layer)
        x = torch.where(seen[..., None], after, x)
    return model.final_norm(x)


@pytest.mark.parametrize("form", ["pythia", "gated, tied, learned", "gpt-j, alibi", "llama, rpe"])
def test_a_routed_layer_sees_the_chosen_tokens_in_their_places(make: Make, form: str) -> None:
    model = make(form, dtype=torch.float64).train()
    tokens = torch.randint(5, 90, (BATCH, SEQ), generator=torch.Generator().manual_seed(1))
    keys, routing = sample_keys(1, 10, BATCH, "cpu"), Routing(frozenset({1}), 1234, KEPT)
    expected = by_hiding(model, tokens, keys, routing)
    expected.square().sum().backward()
    gradients = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    actual = model.hidden(tokens, keys=keys, routing=routing)
    actual.square().sum().backward()
    torch.testing.assert_close(actual, expected)
    for name, weight in model.named_parameters():
        if name in gradients:
            torch.testing.assert_close(weight.grad, gradients[name], msg=name)
    assert not torch.allclose(model.hidden(tokens, keys=keys), actual)


def test_the_draw_follows_from_seed_layer_and_sample_alone() -> None:
    keys = sample_keys(1, 0, 64, "cpu")
    routing = Routing(frozenset({0, 1}), 1234, KEPT)
    drawn = chosen(routing, keys, 0, SEQ)
    assert drawn.shape == (64, KEPT)
    assert (drawn.diff(dim=1) > 0).all()
    assert drawn.min() >= 0
    assert drawn.max() < SEQ
    torch.testing.assert_close(chosen(routing, keys[9:13], 0, SEQ), drawn[9:13])
    others: list[tuple[Any, int]] = [(routing, 1), (Routing(frozenset(), 5, KEPT), 0)]
    assert all(not torch.equal(chosen(each, keys, layer, SEQ), drawn) for each, layer in others)
    assert len({tuple(row) for row in drawn.tolist()}) > 60


def test_every_token_is_as_likely() -> None:
    samples = 20_000
    drawn = chosen(Routing(frozenset({0}), 7, KEPT), sample_keys(3, 0, samples, "cpu"), 0, SEQ)
    share = torch.bincount(drawn.flatten(), minlength=SEQ) / samples
    p = KEPT / SEQ
    assert (share - p).abs().max() < 5 * (p * (1 - p) / samples) ** 0.5


def test_all_tokens_are_seen_in_evaluation_and_by_short_samples(make: Make) -> None:
    model = make("pythia")
    tokens = torch.randint(5, 90, (BATCH, SEQ), generator=torch.Generator().manual_seed(1))
    model.eval()
    plain = model.hidden(tokens)
    routing = Routing(frozenset({0, 1, 2}), 1, KEPT)
    torch.testing.assert_close(model.hidden(tokens, routing=routing), plain)
    short = tokens[:, :KEPT]
    model.train()
    torch.testing.assert_close(
        model.hidden(short, keys=sample_keys(1, 0, BATCH, "cpu"), routing=routing), plain[:, :KEPT]
    )

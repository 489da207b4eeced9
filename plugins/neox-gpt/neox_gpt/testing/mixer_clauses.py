"""Clauses of a mixer: what of a sample, and of others, a token may depend on, and what is kept while decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from neox_author.testing.clauses import hold
from neox_author.testing.ranks import hold_same
from torch import Tensor, nn

from neox_gpt.attention.cache import DecodingCache
from neox_gpt.testing.layer_clauses import random

Run = Callable[..., Tensor]
WAYS = ((1,) * 8, (3, 1, 4), (5, 3), (8,))
"""How many of eight tokens are given at a time."""


def check_samples(module: nn.Module, run: Run, x: Tensor) -> None:
    """Each sample alone against all of them."""
    with torch.no_grad():
        alone = torch.cat([run(module, each[None]) for each in x])
        _same("the result of a sample does not depend on the others of the micro-batch", alone, run(module, x))


def check_causal(module: nn.Module, run: Run, x: Tensor) -> None:
    """A change of one token, and of all from one on, against the results before it."""
    clause, other = "causal: a change at a token alters nothing before it", random(*x.shape, seed=9)
    with torch.no_grad():
        whole = run(module, x)
        for at in range(1, x.shape[1]):
            for end in (at + 1, x.shape[1]):
                changed = torch.cat((x[:, :at], other[:, at:end], x[:, end:]), 1)
                _same(clause, run(module, changed)[:, :at], whole[:, :at])


def check_documents(module: nn.Module, run: Run, packed: Run, x: Tensor, documents: Sequence[Sequence[int]]) -> None:
    """Each document of a sample against what it gives as a sample of its own."""
    with torch.no_grad():
        whole = packed(module, x)
        for sample, numbers in enumerate(documents):
            for number in dict.fromkeys(numbers):
                first, length = numbers.index(number), numbers.count(number)
                one = x[sample : sample + 1, first : first + length]
                clause = "nothing passes the boundary of a document, which gives what it gives alone"
                _same(clause, whole[sample : sample + 1, first : first + length], run(module, one))


def decoded(
    module: nn.Module, run: Run, x: Tensor, ways: Sequence[int], cache: DecodingCache | None = None, layer: int = 0
) -> Tensor:
    """The results for x, given a few tokens at a time."""
    cache = cache or DecodingCache(x.shape[1])
    with torch.no_grad():
        parts = []
        for part in x.split(list(ways), 1):
            parts.append(run(module, part, cache=cache, layer=layer))
            cache.advance(part.shape[1])
        return torch.cat(parts, 1)


def check_decoding(module: nn.Module, run: Run, x: Tensor) -> None:
    """With a state, in several ways, against a whole sequence; several sequences and layers at once; from the start."""
    with torch.no_grad():
        whole = run(module, x)
    for ways in WAYS:
        how = "one token at a time" if max(ways) == 1 else f"{', '.join(map(str, ways))} tokens at a time"
        _same(f"decoding with a state gives what a whole sequence gives ({how})", decoded(module, run, x, ways), whole)
    cache = DecodingCache(x.shape[1])
    decoded(module, run, x, (6, 2), cache)
    tensors = all(isinstance(each, Tensor) for state in cache.states.values() for each in state.values())
    hold(cache.states.get(0) and tensors, "the state of a layer is a dict of tensors, in `scope.state(layer)`")
    cache.clear()
    _same("a state that was cleared is one of no tokens", decoded(module, run, x, (6, 2), cache), whole)
    _check_interleaved(module, run, x, whole)


def _check_interleaved(module: nn.Module, run: Run, x: Tensor, whole: Tensor) -> None:
    """Two sequences in turn, and two layers that share the module."""
    other = random(*x.shape, seed=9)
    clause = "what is kept of a sequence and a layer is in `scope.state(layer)` alone"
    with torch.no_grad():
        wanted: tuple[Any, ...] = (whole, run(module, other))
        for separate in (True, False):
            one = DecodingCache(x.shape[1])
            caches = (one, DecodingCache(x.shape[1]) if separate else one)
            found: tuple[list[Tensor], list[Tensor]] = ([], [])
            for at in range(x.shape[1]):
                for place, given in enumerate((x, other)):
                    layer = 0 if separate else place
                    found[place].append(run(module, given[:, at : at + 1], cache=caches[place], layer=layer))
                for cache in dict.fromkeys(caches):
                    cache.advance(1)
            for place in range(2):
                _same(clause, torch.cat(found[place], 1), wanted[place])


def _same(clause: str, got: Tensor, wanted: Tensor) -> None:
    hold_same(clause, {"the result": got}, {"the result": wanted})

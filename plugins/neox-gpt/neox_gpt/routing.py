"""Random layer-wise token dropping: some layers see a random part of the tokens, the others pass by unchanged.

Which tokens a layer sees follows from (seed, index of the sample in the run, layer), by `parallel.sample_keys.mix`:
not from ranks, micro-batches or recomputation. Source: Yao et al. 2022, arXiv:2211.11586.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve
from torch import Tensor

from neox_core.parallel.sample_keys import mix
from neox_gpt.attention.flex import mask_of_pass

if TYPE_CHECKING:
    from collections.abc import Callable

    from neox_core.parallel.row import Routing
    from neox_gpt.contracts import Position
    from neox_gpt.scope import Scope


def chosen(routing: Routing, keys: Tensor, layer: int, seq: int) -> Tensor:
    """The tokens that a layer sees, ascending: int64 [batch, kept]. keys: of the samples, int64 [batch]."""
    salt = int.from_bytes(hashlib.sha256(f"routing/{routing.seed}/{layer}".encode()).digest()[:4], "little")
    rows = mix(keys ^ salt)[:, None]
    drawn = mix(rows ^ mix(torch.arange(1, seq + 1, device=keys.device)))  # [batch, seq]
    return drawn.argsort(dim=1, stable=True)[:, : routing.kept].sort(1).values


def through_some(run: Callable[..., Any], x: Tensor, position: Position, scope: Scope, layer: int) -> Any:
    """`x` [batch, seq, hidden] after a layer that sees the chosen tokens, in their places. `scope` has routing.

    And what the layer gives besides, see `auxiliary`.
    """
    routing, keys = scope.routing, scope.keys
    if routing is None or keys is None:
        raise ValueError("routing needs the keys of the samples")
    batch, seq, width = x.shape
    seen = chosen(routing, keys, layer, seq)  # [batch, kept]
    within = torch.arange(seq, device=x.device).expand(batch, seq) if scope.positions is None else scope.positions
    within = within.gather(1, seen)
    documents = None if scope.documents is None else scope.documents.gather(1, seen)
    changed = {"positions": within, "documents": documents, "mask": mask_of_pass(documents)}
    inner = evolve(scope, prepared=scope.prepare(within), routing=None, **changed)
    index = seen[..., None].expand(-1, -1, width)
    result = run(x.gather(1, index), position, inner, layer)
    if isinstance(result, Tensor):
        return x.scatter(1, index, result.to(x.dtype))
    return x.scatter(1, index, result[0].to(x.dtype)), result[1]

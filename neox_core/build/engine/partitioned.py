"""ZeRO 3: the weights of a model of which each rank holds a part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn


def whole_weights(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every weight by name, gathered from the ranks for as long as it is looked at. Collective."""
    import deepspeed

    for name, parameter in model.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter], enabled=hasattr(parameter, "ds_tensor")):
            yield name, parameter.detach()


def refresh(wrapper: Any) -> None:
    """Bring the small parameters, which every rank keeps whole, up to the parts that were written. Collective."""
    kept = getattr(wrapper, "persistent_parameters", ())
    if kept:
        kept[0].partition(kept)
        kept[0].all_gather(kept)

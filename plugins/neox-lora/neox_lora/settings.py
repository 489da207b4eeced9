"""The block `lora`."""

from collections.abc import Sequence
from typing import Any

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting


def _patterns(instance: Any, field: Any, value: Sequence[str]) -> None:
    if not value or not all(value):
        raise ValueError("must name a layer, such as [attention.qkv]")


@frozen
class LoraBlock:
    """Low-rank adapters."""

    enabled: bool = setting(False, help="Train low-rank adapters of linear layers, and freeze all other weights.")
    rank: int = setting(8, help="Rank of each adapter.", check=v.gt(0))
    alpha: float = setting(
        16.0, help="The product of an adapter's matrices is multiplied by alpha / rank.", check=v.gt(0)
    )
    dropout: float = setting(
        0.0, help="Dropout on the input of each adapter, in training.", check=v.and_(v.ge(0), v.lt(1))
    )
    target_modules: tuple[str, ...] = setting(
        ("attention.qkv", "attention.output", "mlp.up", "mlp.down"),
        help="The layers that have an adapter: names as in a checkpoint, or their ends after a dot, with * for any "
        "text: attention.qkv, mlp.*, layers.3.*.",
        check=_patterns,
    )


@frozen
class LoraSettings:
    lora: LoraBlock = setting(LoraBlock(), help="Block of low-rank adapters.")

    @property
    def enabled(self) -> bool:
        """Whether the config asks for it."""
        return self.lora.enabled

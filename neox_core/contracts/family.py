"""Families of published checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attrs import frozen

if TYPE_CHECKING:
    from torch import Tensor

    from neox_core.plan.runfile import ModelPlan


def _as_it_is(theirs: Sequence[Tensor]) -> Tensor:
    return theirs[0]


def _alone(ours: Tensor) -> Sequence[Tensor]:
    return (ours,)


@frozen
class WeightRule:
    """One of our parameters and those of a published checkpoint that it is made of.

    join: their tensors, in the order of `theirs`, to ours. split: the way back, exact. They look at shapes and order
    elements anew; nothing is computed, so that import and export lose no bit.
    """

    ours: str
    theirs: tuple[str, ...]
    join: Callable[[Sequence[Tensor]], Tensor] = _as_it_is
    split: Callable[[Tensor], Sequence[Tensor]] = _alone


class ModelFamily(Protocol):
    """`target()`: translates one family of published checkpoints. Its name is the `model_type` of their config.json.

    The target is imported on the host too, so torch is imported inside the functions that need it. What this version of
    neox cannot express is refused by ConfigError, never left out. A method `files() -> Mapping[str, str]`, where it has
    one, gives text files that go with each export, by name, such as the code of a model.
    """

    def keys(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Their config.json -> the keys of a neox config that make the same model."""
        ...

    def config(self, model: ModelPlan, vocab_size: int) -> dict[str, Any]:
        """A planned model -> the config.json of its export, without the dtype and special tokens."""
        ...

    def weights(self, model: ModelPlan) -> Iterable[WeightRule]:
        """Every weight of the model, each of ours once."""
        ...

    def ignores(self, name: str) -> bool:
        """Whether one of their tensors is no weight, such as a stored mask."""
        ...

    def logits(self, folder: Path, tokens: Tensor) -> Tensor | None:
        """What their own implementation gives for int64 [batch, seq] tokens, in fp32 on a CPU: [batch, seq, vocab].

        None where it is not installed.
        """
        ...

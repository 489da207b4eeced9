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
    """One parameter of neox, and the parameters of a published checkpoint that it is made from.

    * ours: its name in neox. theirs: their names in the published checkpoint.
    * join: their tensors, in the order of `theirs`, to ours.
    * split: ours to their tensors, the exact inverse of `join`.

    Both only reshape, join, split and reorder, so import and export lose no bit.
    """

    ours: str
    theirs: tuple[str, ...]
    join: Callable[[Sequence[Tensor]], Tensor] = _as_it_is
    split: Callable[[Tensor], Sequence[Tensor]] = _alone


class ModelFamily(Protocol):
    """`target()`: translates one family of published checkpoints. Its name is the `model_type` of their config.json.

    * The target is also imported on the host, so it imports torch inside the functions that need it.
    * It raises ConfigError for what this version of neox cannot express, and never leaves it out.
    * An optional method `files() -> Mapping[str, str]` gives text files that each export includes, by name, such as the
      code of a model.
    """

    def keys(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The keys of a neox config that describe the model of a published config.json.

        Raises ConfigError for one that lacks what describes the model.
        """
        ...

    def config(self, model: ModelPlan, vocab_size: int) -> dict[str, Any]:
        """The config.json of an export, without the dtype and special tokens.

        model: the planned model. vocab_size: rows of its embedding.
        """
        ...

    def weights(self, model: ModelPlan) -> Iterable[WeightRule]:
        """A rule for every parameter of the model, one for each. Each of their tensors is in one rule."""
        ...

    def ignores(self, name: str) -> bool:
        """Whether one of their tensors is not a weight, such as a stored mask."""
        ...

    def logits(self, folder: Path, tokens: Tensor) -> Tensor | None:
        """The logits of their own implementation, in fp32 on a CPU: [batch, seq, vocab]; None where it is not
        installed.

        folder: the published checkpoint. tokens: int64 [batch, seq].
        """
        ...

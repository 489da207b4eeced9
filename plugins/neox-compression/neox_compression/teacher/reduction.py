"""A model whose layers start as some of those of a deeper one, the teacher."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from neox_gpt.api import Teacher

from neox_core.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from neox_compression.settings import LayerReduction


class Reduced:
    """The first values of a model."""

    def __init__(self, settings: LayerReduction) -> None:
        self._settings = settings

    @cached_property
    def _teacher(self) -> Teacher:
        return Teacher(Path(self._settings.teacher or ""))

    def first_value(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        """Of a parameter of the model; None: it is drawn. Raises ConfigError where the teacher does not have it."""
        theirs = teacher_name(name, self._settings)
        if theirs is None:
            return None
        if self._teacher.shapes.get(theirs) != shape:
            had = self._teacher.shapes.get(theirs)
            said = "has no such weight" if had is None else f"has it of shape {list(had)}"
            raise ConfigError(f"{name}, {list(shape)}, starts as {theirs} of the teacher, which {said}")
        return self._teacher.weight(theirs)


def teacher_name(name: str, settings: LayerReduction) -> str | None:
    """The weight of the teacher with which one of the model starts; None: with none. The last that names it counts."""
    if ".changes." in name:
        return None
    if any(name.startswith(f"{module}.") for module in settings.other_module_name):
        return name
    head, _, rest = name.partition(".")
    layer, _, own = rest.partition(".")
    if head != settings.module_name_prefix or not layer.isdecimal() or int(layer) >= len(settings.teacher_layer):
        return None
    return f"{head}.{settings.teacher_layer[int(layer)]}.{own}"

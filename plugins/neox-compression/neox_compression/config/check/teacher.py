"""What can be wrong with a teacher, asked before a run starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neox_gpt.api import gpt_plan, teacher_in, unlike

from neox_core.api import Problem
from neox_core.errors import CheckpointError

if TYPE_CHECKING:
    from neox_compression.config.sections.distillation import DistillationSettings
    from neox_compression.settings import LayerReduction

MODULES = ("embedding", "position", "final_norm", "head")


def reduction_problems(config: Any, settings: LayerReduction, at: str) -> Iterator[Problem]:
    """What contradicts a student with fewer layers than its teacher."""
    layers, depth = settings.teacher_layer, config.value("num_layers")
    if settings.teacher is None:
        yield config.problem("is required", f"{at}.teacher", "name the folder that the teacher's run calls save")
    if settings.module_name_prefix != "layers":
        message = f"{settings.module_name_prefix!r} is not where a decoder has its layers"
        yield config.problem(message, f"{at}.module_name_prefix", "module_name_prefix: layers")
    if settings.keep_number_layer not in (None, depth):
        message = f"{settings.keep_number_layer} is not num-layers, {depth}"
        yield config.problem(message, f"{at}.keep_number_layer", f"keep_number_layer: {depth}")
    if layers and len(layers) != depth:
        message = f"names {len(layers)} layers for the {depth} of this model"
        yield config.problem(message, f"{at}.teacher_layer", "name one for each")
    others = settings.other_module_name
    if not layers and not others:
        yield config.problem("is enabled but takes nothing of the teacher", at, "set teacher_layer")
    allowed = (*MODULES, *(f"layers.{layer}" for layer in range(depth)))
    for other in others:
        if other not in allowed:
            message = f"{other!r} is not a module of this model"
            yield config.problem(message, f"{at}.other_module_name", f"one of {', '.join(allowed[:5])} ...")
    deepest = _depth(settings.teacher)
    if deepest is not None and layers and max(layers) >= deepest:
        message = f"{max(layers)} is not a layer of the teacher, which has 0 to {deepest - 1}"
        yield config.problem(message, f"{at}.teacher_layer", "name others")
    if settings.teacher is not None:
        yield from _is_alike(config, settings.teacher, f"{at}.teacher")


def distillation_problems(config: Any, settings: DistillationSettings) -> Iterator[Problem]:
    """What contradicts learning from the outputs of a teacher."""
    folder, block = settings.distillation.teacher, gpt_plan(config).changes
    if folder is not None:
        yield from _is_alike(config, folder, "distillation.teacher")
    else:
        from neox_compression.teacher.folder import of_plan

        if not block or of_plan(gpt_plan(config)) is None:
            yield config.problem("is required", "distillation.teacher", "name the folder of the teacher's checkpoint")


def _is_alike(config: Any, folder: str, key: str) -> Iterator[Problem]:
    try:
        reason = unlike(gpt_plan(config), teacher_in(Path(folder)))
    except CheckpointError as error:
        yield config.problem(error.message, key, error.hint or "name another folder")
        return
    if reason is not None:
        yield config.problem(
            f"the teacher is another model: {reason}", key, "change the model, or name another teacher"
        )


def _depth(folder: str | None) -> int | None:
    """Layers of the teacher; None where that cannot be read, which is told elsewhere."""
    from neox_gpt.api import stored_layers

    try:
        return None if folder is None else stored_layers(teacher_in(Path(folder)))
    except CheckpointError:
        return None

"""A decoder that a run has saved, for a model that starts with its layers or learns from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import asdict, evolve

from neox_core.errors import CheckpointError, ConfigError
from neox_core.plan.runfile import ComponentRef
from neox_core.plan.stored.saved import find_checkpoint, read_run

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from neox_gpt.config.plan import GPTPlan
    from neox_gpt.gpt import GPT

ALIKE = (
    "hidden_size",
    "num_attention_heads",
    "num_kv_heads",
    "head_dim",
    "intermediate_size",
    "max_position_embeddings",
    "norm",
    "activation",
    "position",
    "tie_embeddings",
    "parallel_residual",
    "residual_post_norm",
    "shared_norm",
    "attention_bias",
    "mlp_bias",
    "qk_norm",
    "norm_place",
    "attention_output_bias",
    "attention_multiplier",
    "attention_softcap",
    "embedding_multiplier",
    "logit_softcap",
    "head_bias",
)
"""Fields of a plan with other values of which a layer computes something else."""
STANDS_FOR: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "num_kv_heads": lambda model: model.get("num_attention_heads"),
    "head_dim": lambda model: model["hidden_size"] // model["num_attention_heads"],
    "attention_output_bias": lambda model: model.get("attention_bias"),
    "head_bias": lambda model: False,
}
"""What None is in a plan, by field."""
BY_LAYER = ("windows", "positions_of_layer", "mixers", "feed_forwards", "layout_of_layer")
"""Fields that give layers of a decoder different parts."""


def teacher_in(folder: Path) -> Path:
    """The newest checkpoint in `folder`. Raises CheckpointError where there is none."""
    found = find_checkpoint(folder)
    if found is None:
        raise CheckpointError(
            f"{folder}: no checkpoint of a teacher here", hint="name the folder that a run called save"
        )
    return found


def stored_layers(checkpoint: Path) -> int | None:
    """Layers of the model of a checkpoint, as its run.json says; None: it does not. Raises CheckpointError."""
    found = read_run(checkpoint).get("model")
    layers = found.get("num_layers") if isinstance(found, dict) else None
    return layers if isinstance(layers, int) else None


def unlike(plan: GPTPlan, checkpoint: Path) -> str | None:
    """Why the layers of the run of a checkpoint cannot be those of a model of `plan`; None: they can.

    Imports no torch. Raises CheckpointError.
    """
    theirs = read_run(checkpoint).get("model")
    if not isinstance(theirs, dict):
        return "its run.json has no model"
    ours = asdict(plan, recurse=False)
    for name in ALIKE:
        mine, other = _told(ours, name), _told(theirs, name)
        if mine != other:
            return f"{name} is {other} there and {mine} here"
    return next((f"{name} gives layers different parts" for name in BY_LAYER if _differ(ours, theirs, name)), None)


def _differ(ours: Mapping[str, Any], theirs: Mapping[str, Any], name: str) -> bool:
    """Whether a field gives layers different parts, in one of two plans or between them."""
    mine, other = ours[name], theirs.get(name)
    if not isinstance(other, list) or not mine or len(mine) != 1 or len(other) != 1:
        return bool(mine or other)
    return bool(_told({name: mine[0]}, name) != _told({name: other[0]}, name))


def _told(model: Mapping[str, Any], name: str) -> Any:
    """What a field of a plan says: for a component its name and settings, for None the value that it stands for."""
    value = model.get(name)
    if isinstance(value, ComponentRef):
        value = {"name": value.name, "settings": asdict(value)["settings"]}
    elif isinstance(value, dict):
        value = {"name": value.get("name"), "settings": value.get("settings")}
    if value is None and name in STANDS_FOR:
        value = STANDS_FOR[name](model)
    return json.loads(json.dumps(value))


class Teacher:
    """The model of a checkpoint. Raises CheckpointError for one that is damaged.

    num_layers: its own. vocab_size: rows of its embedding.
    """

    def __init__(self, folder: Path) -> None:
        from neox_core.checkpoint.read import CheckpointReader

        self._reader = CheckpointReader(teacher_in(folder))
        self._reader.verify(lambda _, file: ".optimizer." not in file)
        self.shapes = {name: each for name, each in self._reader.shapes("weight").items() if ".changes." not in name}
        self.num_layers = len({name.split(".")[1] for name in self.shapes if name.startswith("layers.")})
        self.vocab_size = self.shapes["embedding.weight"][0]

    def weight(self, name: str) -> Tensor:
        """A whole weight, on the CPU."""
        return self._reader.tensor("weight", name)

    def build(self, plan: GPTPlan, device: torch.device, dtype: torch.dtype) -> GPT:
        """The whole model in evaluation, without gradients. plan: of a model that is like it, of any depth.

        Raises ConfigError for one that is not like it.
        """
        from neox_core.parallel.context import BuildContext
        from neox_core.parallel.groups import Groups
        from neox_gpt.build import build_model

        reason = unlike(plan, self._reader.folder)
        if reason is not None:
            raise ConfigError(f"{self._reader.folder}: the teacher is another model: {reason}")
        own = evolve(
            plan,
            num_layers=self.num_layers,
            num_unique_layers=None,
            changes=None,
            recompute=None,
            compile=False,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            reset_position_ids=False,
            reset_attention_mask=False,
            eod_mask_loss=False,
            sparse_gradients=False,
        )
        context = BuildContext(device, dtype, Groups(None, None, 0, 1), seed=0)
        weights = {name: self.weight(name) for name in self.shapes}
        model = build_model(own, self.vocab_size, context, weights)
        model.eval().requires_grad_(False)
        return model

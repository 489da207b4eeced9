"""Adapters as PEFT stores them: `adapter_config.json` and `adapter_model.safetensors`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve
from neox_gpt.api import gpt_plan_in

from neox_core.checkpoint.read import CheckpointReader
from neox_core.checkpoint.tensor_file import write_tensors
from neox_core.errors import CheckpointError, ConfigError, UsageError
from neox_core.files import replacing
from neox_lora.settings import LoraSettings

if TYPE_CHECKING:
    from neox_gpt.api import GPTPlan
    from torch import Tensor

    from neox_core.plan.runfile import RunPlan
    from neox_lora.settings import LoraBlock

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
BEFORE = "base_model.model."
"""In PEFT's names of parameters, before those of transformers."""
TOLERANCE = 1e-6


def write_adapters(
    checkpoint: Path, plan: RunPlan, out: Path, families: Mapping[str, Any], base: str | None = None
) -> str:
    """Write the adapters of a checkpoint to the folder `out`. Returns a line about it.

    families: by name, of which the first that has the model is taken; they keep `neox_hf.api.ModelFamily`. base: where
    the base model is, for the files to name. Raises ConfigError for a run that has no adapters, or a model that no
    family has, CheckpointError for a damaged checkpoint.
    """
    if out.exists():
        raise UsageError(f"{out}: exists already", hint="name another folder, or remove it")
    model = gpt_plan_in(plan)
    block = _block(model)
    reader = CheckpointReader(checkpoint)
    reader.verify(lambda _, file: ".optimizer." not in file)
    name, family = _family(evolve(model, changes=None), families, reader.tensor_shape("weight", "embedding.weight")[0])
    tensors: dict[str, Tensor] = {}
    modules: list[str] = []
    for rule in family.weights(evolve(model, changes=None)):
        at = f"{rule.ours.removesuffix('weight')}changes.lora"
        if rule.ours.endswith(".weight") and f"{at}.up" in reader.shapes("weight"):
            up, down = (reader.tensor("weight", f"{at}.{part}") for part in ("up", "down"))
            if down.shape[0] != block.rank:
                raise CheckpointError(f"{checkpoint}: {at}.down has rank {down.shape[0]}, and its run {block.rank}")
            for theirs, part in zip(rule.theirs, _parts(rule.split, up, down, name), strict=True):
                module = theirs.removesuffix(".weight")
                modules.append(module)
                tensors[f"{BEFORE}{module}.lora_A.weight"] = down.clone()
                tensors[f"{BEFORE}{module}.lora_B.weight"] = part.contiguous().clone()
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": block.rank,
        "lora_alpha": int(block.alpha) if block.alpha.is_integer() else block.alpha,
        "lora_dropout": block.dropout,
        "target_modules": modules,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "inference_mode": True,
    }
    written = out.with_name(f".{out.name}.tmp")
    try:
        shutil.rmtree(written, ignore_errors=True)
        written.mkdir(parents=True)
        with replacing(out, written):
            (written / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            write_tensors(written / WEIGHTS, tensors, {"format": "pt"})
    except OSError as error:
        raise CheckpointError(f"{written}: cannot be written: {error.strerror or error}") from error
    return f"wrote {out}: adapters of {len(modules)} layers of {name}"


def _block(model: GPTPlan) -> LoraBlock:
    """The settings of the adapters. Raises ConfigError for a model without, or with other changes besides."""
    changes = [each.load()[1] for each in model.changes or ()]
    (settings,) = changes if len(changes) == 1 else (None,)
    if not isinstance(settings, LoraSettings):
        others = ", ".join(each.name for each in model.changes or ()) or "none"
        raise ConfigError(
            f"PEFT's files hold low-rank adapters alone, and the model changes of this run are: {others}",
            hint="`neox checkpoint export-hf` writes the whole model",
        )
    return settings.lora


def _family(model: GPTPlan, families: Mapping[str, Any], rows: int) -> tuple[str, Any]:
    reasons = []
    for name, family in sorted(families.items()):
        try:
            family.config(model, rows)
        except ConfigError as error:
            reasons.append(f"{name}: {error.message}")
        else:
            return name, family
    raise ConfigError("no family has this model: " + "; ".join(reasons))


def _parts(split: Callable[[Tensor], Sequence[Tensor]], up: Tensor, down: Tensor, family: str) -> Sequence[Tensor]:
    """`up` for each of the layers that a layer is made of. They take the same input, so they share `down`.

    Raises ConfigError where the family stores weights in a form that this is not right for.
    """
    try:
        parts = split(up)
        wanted = split(up.double() @ down.double())
        found = [part.double() @ down.double() for part in parts]
        right = all(torch.allclose(a, b, rtol=0, atol=TOLERANCE) for a, b in zip(found, wanted, strict=True))
    except (RuntimeError, ValueError):  # of shapes that do not fit
        right = False
    if not right:
        raise ConfigError(f"family {family}: its layers have transposed weights, which adapters are not written for")
    return parts

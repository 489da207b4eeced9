"""From a published checkpoint to one of ours: the work of `neox checkpoint import-hf`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from neox_checkpoints.api import write_checkpoint
from neox_gpt.api import GPTPlan, parameter_shapes
from torch import Tensor

from neox_core.data.tokenizer import padded_vocab
from neox_core.errors import CheckpointError, run_main
from neox_core.hooks.component import load_path
from neox_core.plan.runfile import receive_plan
from neox_core.terminal import echo, echo_json
from neox_hf.format import PublishedWeights
from neox_hf.published_files import Published

if TYPE_CHECKING:
    from neox_core.plan.runfile import ModelPlan, RunPlan
    from neox_hf.contracts import ModelFamily, WeightRule


def import_hf(folder: Path, out: Path, plan: RunPlan, family: ModelFamily, **options: int) -> Path:
    """Write the weights in `folder` as a checkpoint at step 0 in `out`, for runs to start from with `finetune: true`.

    plan: of a run of that model. options: of `write_checkpoint`. Returns the checkpoint's folder. Raises
    CheckpointError as `checked_weights`.
    """
    return write_checkpoint(out, PublishedWeights(folder, family), plan, **options)


def checked_weights(folder: Path, family: ModelFamily, model: ModelPlan) -> Iterator[tuple[str, Tensor]]:
    """(our name, tensor) of every weight of a model. Raises CheckpointError when weights are missing, of another shape,
    or more than the model has.
    """
    source, rules = Published(folder), tuple(family.weights(model))
    _check_names(source, rules, family)
    if not isinstance(model, GPTPlan):
        raise CheckpointError(f"{folder}: is a decoder, and the model of this run is another")
    shapes = parameter_shapes(model, padded_vocab(model, None))
    if {rule.ours for rule in rules} != set(shapes):
        names = sorted({rule.ours for rule in rules} ^ set(shapes))
        raise CheckpointError(f"{folder}: the family does not say what becomes of {names[0]}")
    for name, tensor in read_weights(source, rules):
        if tuple(tensor.shape) != shapes[name]:
            raise CheckpointError(f"{folder}: {name} would be {list(tensor.shape)}, the model has {list(shapes[name])}")
        yield name, tensor


def read_weights(source: Published, rules: Sequence[WeightRule]) -> Iterator[tuple[str, Tensor]]:
    """(our name, tensor) of every rule, one after the other."""
    for rule in rules:
        theirs = [source.tensor(name) for name in rule.theirs]
        try:
            yield rule.ours, rule.join(theirs).contiguous()
        except RuntimeError as error:  # of shapes that do not go together
            shapes = ", ".join(str(list(each.shape)) for each in theirs)
            raise CheckpointError(f"{source.folder}: {rule.theirs[0]} ({shapes}) is of another model") from error


def _check_names(source: Published, rules: Sequence[WeightRule], family: ModelFamily) -> None:
    wanted = {name for rule in rules for name in rule.theirs}
    missing = sorted(wanted - set(source.files))
    left = sorted(name for name in set(source.files) - wanted if not family.ignores(name))
    if missing:
        raise CheckpointError(f"{source.folder}: no tensor {missing[0]} ({len(missing)} are missing)")
    if left:
        raise CheckpointError(f"{source.folder}: {left[0]} is not in the model that config.json describes")


def main() -> None:
    """`python -m neox_hf.import_checkpoint JSON`: folder, out, plan, family (its import path), as_json."""
    raw = json.loads(sys.argv[1])
    plan = receive_plan(raw["plan"])
    final = import_hf(Path(raw["folder"]), Path(raw["out"]), plan, load_path(raw["family"])())
    keys = str(Path(raw["out"]) / "model.yml")
    if raw["as_json"]:
        echo_json({"wrote": str(final), "config": keys})
    else:
        echo(f"wrote {final}; {keys} has the keys of its model")


if __name__ == "__main__":
    run_main(main)

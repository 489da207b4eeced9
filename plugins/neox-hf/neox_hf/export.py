"""From a checkpoint of ours to a published one: the work of `neox checkpoint export-hf`."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from attrs import asdict, evolve
from neox_gpt.api import FoldedReader, build_on_meta, gpt_plan_in
from torch import Tensor, nn

from neox_core.checkpoint.read import CheckpointReader
from neox_core.errors import CheckpointError, ConfigError, NeoxError, UsageError, run_main
from neox_core.files import replacing
from neox_core.hooks.component import cause_of, load_path
from neox_core.plan.runfile import ComponentRef, receive_plan, with_components
from neox_core.terminal import echo, echo_json
from neox_hf.import_checkpoint import read_weights
from neox_hf.published_files import Published, write_published
from neox_hf.tokenizer_files import write_tokenizer

if TYPE_CHECKING:
    from neox_gpt.api import GPTPlan

    from neox_core.plan.runfile import RunPlan
    from neox_hf.contracts import ModelFamily

FILE_BYTES = 5 * 10**9
TOLERANCE = 1e-4
"""Largest difference to another implementation's logits, next to the largest logit."""


def export_hf(
    checkpoint: Path, plan: RunPlan, out: Path, family: ModelFamily, file_bytes: int = FILE_BYTES
) -> list[str]:
    """Write a checkpoint of a run of `plan` to the folder `out`, which must not be there yet, as `family` has it.

    Before `out` gets its name, what was written is read again and compared with the checkpoint, bit by bit, and its
    logits in the family's own implementation, where that is installed, with ours. Returns notes for people. Raises
    ConfigError for a model that the family does not have, CheckpointError where anything is wrong with the files or the
    logits. Neither writing nor comparing takes memory that grows with the number of layers.
    """
    if out.exists():
        raise UsageError(f"{out}: exists already", hint="name another folder, or remove it")
    reader = FoldedReader(checkpoint, gpt_plan_in(plan))
    reader.verify(lambda _, file: ".optimizer." not in file)
    rows = reader.tensor_shape("weight", "embedding.weight")[0]
    dtype = str(reader.tensor("weight", "final_norm.weight").dtype).removeprefix("torch.")
    model = reader.plan
    config = {**family.config(model, rows), "dtype": dtype, "torch_dtype": dtype}
    written = out.with_name(f".{out.name}.tmp")
    notes: list[str] = []
    try:
        shutil.rmtree(written, ignore_errors=True)
        written.mkdir(parents=True)
        with replacing(out, written):
            config.update(write_tokenizer(plan, checkpoint, written, notes))
            write_published(written, config, _their_weights(reader, family, model), file_bytes)
            for name, text in getattr(family, "files", dict)().items():
                (written / name).write_text(text, encoding="utf-8")
            notes += _compare(reader, written, model, rows, family)
    except OSError as error:
        raise CheckpointError(f"{written}: cannot be written: {error.strerror or error}") from error
    return notes


def _their_weights(reader: CheckpointReader, family: ModelFamily, model: GPTPlan) -> Iterator[tuple[str, Tensor]]:
    for rule in family.weights(model):
        parts = rule.split(reader.tensor("weight", rule.ours))
        yield from zip(rule.theirs, (part.contiguous() for part in parts), strict=True)


def _compare(reader: CheckpointReader, written: Path, model: GPTPlan, rows: int, family: ModelFamily) -> list[str]:
    """Notes on what was compared. One weight is in memory at a time, then the embeddings and one layer."""
    for name, again in read_weights(Published(written), tuple(family.weights(model))):
        if not torch.equal(again, reader.tensor("weight", name)):
            raise CheckpointError(f"{written}: {name} is not what the checkpoint holds")
    tokens = torch.randint(
        rows, (1, min(64, model.max_position_embeddings)), generator=torch.Generator().manual_seed(0)
    )
    try:
        theirs = family.logits(written, tokens)
    except NeoxError:
        raise
    except Exception as error:  # of another library, which checks values in its own way
        cause = cause_of(error, "transformers")
        raise CheckpointError(f"{written}: the family's own implementation does not take it: {cause}") from error
    if theirs is None:
        return ["what was written is the checkpoint, bit by bit; no other implementation is installed to compare with"]
    ours = logits_layer_by_layer(reader, model, rows, tokens)
    for who, logits in (("neox", ours), ("the family's own implementation", theirs)):
        if not logits.isfinite().all():
            raise CheckpointError(f"{written}: {who} gives logits that are not finite numbers")
    apart = float((theirs - ours).abs().max())
    if apart > TOLERANCE * max(1.0, float(ours.abs().max())):
        raise CheckpointError(f"{written}: the family's own implementation gives logits that are {apart:.2g} apart")
    return [f"the family's own implementation gives the same logits, to {apart:.1g}"]


def logits_layer_by_layer(reader: CheckpointReader, plan: GPTPlan, rows: int, tokens: Tensor) -> Tensor:
    """Logits in fp32 of int64 [batch, seq] tokens, taken as one document: [batch, seq, rows].

    plan: of a model whose layers are all its own. Memory is taken for the embeddings and one layer.
    """

    def fill(module: nn.Module, prefix: str) -> None:
        module.to_empty(device="cpu")
        for name, parameter in module.named_parameters():
            parameter.copy_(reader.tensor("weight", f"{prefix}.{name}"))

    model = build_on_meta(plan, rows).eval()
    model.documents = None
    for layer, block in enumerate(model.layers):
        block.register_forward_pre_hook(lambda block, _, layer=layer: fill(block, f"layers.{layer}"))
        block.register_forward_hook(lambda block, *_: _leave(block))
    with torch.no_grad():
        for name, module in model.named_children():
            if name != "layers":
                fill(module, name)
        return model.logits(tokens)


def _leave(block: nn.Module) -> None:
    block.to("meta")


def as_read(component: ComponentRef) -> ComponentRef:
    """With settings that its class has checked, as it has them: what a checkpoint holds for 1.0 may be 1.

    One that is not installed stays as it is. Raises PluginError for settings that are not of the class.
    """
    settings = component.load()[1] if component.target else None
    return component if settings is None else evolve(component, settings=asdict(settings))


def choose_family(plan: GPTPlan, families: Mapping[str, ModelFamily]) -> ModelFamily:
    """The first of `families` that has the model. Raises ConfigError with the reasons of all."""
    reasons = []
    for name, family in sorted(families.items()):
        try:
            family.config(plan, 1)
        except ConfigError as error:
            reasons.append(f"{name}: {error.message}")
        else:
            return family
    raise ConfigError("no family has this model: " + "; ".join(reasons))


def main() -> None:
    """`python -m neox_hf.export JSON`: checkpoint, plan, out, families (name -> import path), as_json."""
    raw = json.loads(sys.argv[1])
    plan = receive_plan(raw["plan"])
    plan = evolve(plan, model=with_components(plan.model, as_read))
    families = {name: load_path(path)() for name, path in raw["families"].items()}
    checkpoint = Path(raw["checkpoint"])
    family = choose_family(FoldedReader(checkpoint, gpt_plan_in(plan)).plan, families)
    notes = [*export_hf(checkpoint, plan, Path(raw["out"]), family)]
    if raw["as_json"]:
        echo_json({"wrote": raw["out"], "notes": notes})
        return
    for note in notes:
        echo(f"{note}")
    echo(f"wrote {raw['out']}")


if __name__ == "__main__":
    run_main(main)

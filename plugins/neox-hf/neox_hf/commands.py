"""`neox checkpoint`: published checkpoints as ours and the other way round. Another process does what needs torch."""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from neox_gpt.api import saved_run

from neox_core.cli.process import exec_module
from neox_core.errors import CheckpointError, UsageError
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.install import how_to_install, require_modules
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import RunPlan
from neox_core.terminal import one_line
from neox_hf.format import REST, end_of_text, read_config

JSON = click.option("--json", "as_json", is_flag=True, help="A JSON object instead of lines.")


@click.group()
def checkpoint() -> None:
    """Turn checkpoints of other libraries into ours, and ours into theirs."""


@checkpoint.command("import-hf")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for the checkpoint and model.yml.")
@click.option("--family", help="Family of the files. Default: the model_type in config.json.")
@JSON
def import_hf(folder: Path, out: Path, family: str | None, as_json: bool) -> None:
    """Read FOLDER (config.json, *.safetensors, tokenizer.json) and write a checkpoint to start from.

    Train on from it with `neox train OUT/model.yml ... --set load=OUT --set finetune=true`.
    """
    catalog = load_plugins()
    plan, target = prepare_import(folder, out, family, catalog)
    exec_module(
        "neox_hf.import_checkpoint",
        {"folder": str(folder), "out": str(out), "family": target, "as_json": as_json},
        plan,
    )


def prepare_import(folder: Path, out: Path, family: str | None, catalog: Catalog) -> tuple[RunPlan, str]:
    """Write `out`/model.yml and the tokenizer.

    Returns the plan of a run of that model, and the import path of the family.
    """
    config = read_config(folder)
    entry = catalog.find("model family", family or str(config.get("model_type")))
    require_modules(entry)
    keys: dict[str, Any] = dict(entry.load()().keys(config))
    try:
        if out.exists() and any(out.iterdir()):
            raise UsageError(f"{out}: exists already", hint="name another folder, or remove it")
        out.mkdir(parents=True, exist_ok=True)
        if (folder / "tokenizer.json").is_file():
            keys |= {"tokenizer-type": "HFTokenizer", "vocab-file": str(out / "tokenizer.json")}
            for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
                if (folder / name).is_file():
                    shutil.copyfile(folder / name, out / name)
            keys |= end_of_text(folder)
        (out / "model.yml").write_text(_yaml(folder, keys), encoding="utf-8")
    except OSError as error:
        raise CheckpointError(f"{out}: cannot be written: {error.strerror or error}") from error
    with tempfile.TemporaryDirectory() as scratch:
        rest = Path(scratch) / "rest.json"
        rest.write_text(json.dumps({**REST, "seq-length": keys["max-position-embeddings"]}), encoding="utf-8")
        plan = prepare_run([out / "model.yml", rest], catalog=catalog, start=False).plan
    return plan, entry.component.target


@checkpoint.command("export-hf")
@click.argument("load", type=click.Path(readable=False))
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Folder to write; it must not be there yet."
)
@click.option("--family", help="Family to write. Default: the first that has such a model.")
@JSON
def export_hf(load: str, out: Path, family: str | None, as_json: bool) -> None:
    """Write the newest checkpoint in LOAD for transformers to read: a run's `save`, a folder or an address, or one
    checkpoint in it.

    What was written is read again before this says that it is done: weights are compared with the checkpoint to the
    bit, logits with those of transformers where it is installed.
    """
    catalog = load_plugins()
    names = (family,) if family else catalog.registry.names("model family")
    if not names:
        raise UsageError("no plugin offers a model family", hint=how_to_install("neox-hf"))
    entries = [catalog.find("model family", name) for name in names]
    ready = [each for each in entries if not each.component.missing()]
    for each in entries if family or not ready else ():
        require_modules(each)
    families = {each.component.name: each.component.target for each in ready}
    found, plan = saved_run(load, catalog)
    arguments = {"checkpoint": str(found), "out": str(out), "families": families, "as_json": as_json}
    exec_module("neox_hf.export", arguments, plan)


def _yaml(folder: Path, keys: Mapping[str, Any]) -> str:
    """Flat YAML; JSON's notation of a value is YAML's too."""
    lines = [f"# The model of {one_line(str(folder))}, as `neox checkpoint import-hf` found it."]
    return "\n".join([*lines, *(f"{key}: {json.dumps(value)}" for key, value in keys.items())]) + "\n"

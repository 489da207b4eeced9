"""`neox checkpoint export-peft`."""

from pathlib import Path

import click
from neox_gpt.api import saved_run

from neox_core.errors import UsageError
from neox_core.hooks.install import how_to_install, require_modules
from neox_core.hooks.loader import load_plugins
from neox_core.terminal import echo, echo_json


@click.command()
@click.argument("load", type=click.Path(readable=False))
@click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Folder to write; it must not be there yet."
)
@click.option("--base", help="Path or name of the base model in the form of transformers, which the files then name.")
@click.option("--family", help="Family of the base. Default: the first that has such a model.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object instead of a line.")
def export_peft(load: str, out: Path, base: str | None, family: str | None, as_json: bool) -> None:
    """Write the adapters of the newest checkpoint in LOAD alone, for PEFT to read.

    The base is what `neox checkpoint export-hf` writes of the checkpoint that the adapters were trained from.
    """
    catalog = load_plugins()
    names = (family,) if family else catalog.registry.names("model family")
    if not names:
        raise UsageError("no plugin offers a model family", hint=how_to_install("neox-hf"))
    entries = [catalog.find("model family", name) for name in names]
    for each in entries if family else ():
        require_modules(each)
    checkpoint, plan = saved_run(load, catalog)
    from neox_lora.peft import write_adapters  # imports torch

    families = {each.component.name: each.load()() for each in entries if not each.component.missing()}
    said = write_adapters(checkpoint, plan, out, families, base)
    if as_json:
        echo_json({"wrote": str(out), "said": said})
    else:
        echo(said)

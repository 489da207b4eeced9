"""`neox generate`: text from a trained model. A process that may import torch does the work."""

import math
from pathlib import Path
from typing import Any

import click

from neox_core.cli.process import exec_module
from neox_core.errors import UsageError
from neox_core.hooks.loader import load_plugins
from neox_gpt.config.mixers import require_decoding
from neox_gpt.config.plan import GPTPlan
from neox_gpt.saved import saved_run


class Finite(click.FloatRange):
    """A range without nan and inf, which no comparison refuses."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """As click's; refuses nan and inf."""
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value} is not a finite number", param, ctx)
        return found


@click.command()
@click.option(
    "--load",
    required=True,
    type=click.Path(readable=False),
    help="A run's `save`, a folder or an address, or one checkpoint in it.",
)
@click.option("--prompt", help="Text to continue; empty: start a document.")
@click.option(
    "--prompts",
    "file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help='Texts to continue, one a line; in a .jsonl file {"prompt": TEXT, "id": TEXT or NUMBER}.',
)
@click.option("--interactive", is_flag=True, help="Ask for prompts, one a line, until the end of the input (Ctrl-D).")
@click.option(
    "--batch-size", default=8, show_default=True, type=click.IntRange(min=1), help="Prompts of a file at a time."
)
@click.option(
    "--max-new-tokens", default=256, show_default=True, type=click.IntRange(min=1), help="Tokens to generate at most."
)
@click.option(
    "--temperature", default=0.8, show_default=True, type=Finite(min=0), help="0 takes the most likely token."
)
@click.option("--top-k", type=click.IntRange(min=1), help="Draw from the k most likely tokens only.")
@click.option(
    "--top-p",
    default=0.95,
    show_default=True,
    type=Finite(min=0, max=1, min_open=True),
    help="Draw from the most likely tokens that together have this probability.",
)
@click.option(
    "--min-p",
    default=0.0,
    show_default=True,
    type=Finite(min=0, max=1),
    help="Draw only tokens at least this many times as likely as the most likely one.",
)
@click.option(
    "--repetition-penalty",
    default=1.0,
    show_default=True,
    type=Finite(min=0, min_open=True),
    help="Make tokens that the text already has less likely; 1 does not.",
)
@click.option(
    "--stop", "stops", multiple=True, metavar="TEXT", help="End before this text; may be given several times."
)
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(0, 2**63 - 1), help="The same seed gives the same text."
)
@click.option("--device", default="auto", show_default=True, type=click.Choice(["auto", "cpu", "cuda"]))
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line for each prompt.")
def generate(
    load: str,
    prompt: str | None,
    file: Path | None,
    interactive: bool,
    batch_size: int,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float,
    min_p: float,
    repetition_penalty: float,
    stops: tuple[str, ...],
    seed: int,
    device: str,
    as_json: bool,
) -> None:
    """Continue prompts with a trained model: one, printing the text as it comes, or those of a file.

    Ends at the end of a document, before a --stop, or after --max-new-tokens. Text beyond the positions of the model
    (max-position-embeddings) continues from the newer half of them, which a note reports. Prompt k of a file, counted
    from 0, draws with --seed plus k, whatever the batch. The last line on stderr has the tokens per second.
    """
    if (prompt is not None) + (file is not None) + interactive != 1:
        raise UsageError("what to continue is not clear", hint="give one of --prompt, --prompts and --interactive")
    if "" in stops:
        raise UsageError("--stop: the text is empty", hint="give the text to stop at")
    checkpoint, plan = saved_run(load, load_plugins())
    if isinstance(plan.model, GPTPlan):
        require_decoding(plan.model)
    exec_module(
        "neox_gpt.generation.main",
        {
            "checkpoint": str(checkpoint),
            "prompt": prompt,
            "file": None if file is None else str(file),
            "batch_size": batch_size,
            "max_new_tokens": max_new_tokens,
            "device": device,
            "stops": stops,
            "as_json": as_json,
            "sampling": {
                "temperature": temperature,
                "top_k": top_k,
                "top_p": top_p,
                "min_p": min_p,
                "repetition_penalty": repetition_penalty,
                "seed": seed,
            },
        },
        plan,
    )

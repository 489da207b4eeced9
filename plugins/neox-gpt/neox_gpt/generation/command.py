"""`neox generate`: text from a trained model. A process that may import torch does the work."""

import click

from neox_core.cli.process import exec_module
from neox_core.hooks.loader import load_plugins
from neox_gpt.config.mixers import require_decoding
from neox_gpt.config.plan import GPTPlan
from neox_gpt.saved import saved_run


@click.command()
@click.option("--load", required=True, help="A run's `save`, a folder or an address, or one checkpoint in it.")
@click.option("--prompt", required=True, help="Text to continue; empty: start a document.")
@click.option(
    "--max-new-tokens", default=256, show_default=True, type=click.IntRange(min=1), help="Tokens to generate at most."
)
@click.option(
    "--temperature", default=0.8, show_default=True, type=click.FloatRange(min=0), help="0 takes the most likely token."
)
@click.option("--top-k", type=click.IntRange(min=1), help="Draw from the k most likely tokens only.")
@click.option(
    "--top-p",
    default=0.95,
    show_default=True,
    type=click.FloatRange(min=0, max=1, min_open=True),
    help="Draw from the most likely tokens that together have this probability.",
)
@click.option("--seed", default=0, show_default=True, help="The same seed gives the same text.")
@click.option("--device", default="auto", show_default=True, type=click.Choice(["auto", "cpu", "cuda"]))
def generate(
    load: str,
    prompt: str,
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float,
    seed: int,
    device: str,
) -> None:
    """Continue a prompt with a trained model, printing the text as it comes.

    Ends at the end of a document or after --max-new-tokens. Text beyond the positions of the model
    (max-position-embeddings) continues from the newer half of them, which a note reports.
    """
    checkpoint, plan = saved_run(load, load_plugins())
    if isinstance(plan.model, GPTPlan):
        require_decoding(plan.model)
    exec_module(
        "neox_gpt.generation.generate",
        {
            "checkpoint": str(checkpoint),
            "prompt": prompt,
            "max_new_tokens": max_new_tokens,
            "device": device,
            "sampling": {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed},
        },
        plan,
    )

"""A trained model and what transformers makes of its export."""

from pathlib import Path
from typing import Any

import torch
from attrs import evolve
from neox_gpt.api import FoldedReader, gpt_plan_in
from neox_hf.export import as_read, choose_family, export_hf

import neox_core
from neox_core.errors import ConfigError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.runfile import RunPlan, with_components
from neox_core.plan.stored.saved import find_checkpoint

MOST = 1e-3


def exported(plan: RunPlan, saved: Path, out: Path) -> str:
    """How far the logits of the exported model are from its own; "" where they are near, or no family has it."""
    from transformers import AutoModelForCausalLM

    last, plan = find_checkpoint(saved), evolve(plan, model=with_components(plan.model, as_read))
    assert last is not None
    families = {entry.component.name: entry.load()() for entry in load_plugins().registry.entries("model family")}
    try:
        family = choose_family(FoldedReader(last, gpt_plan_in(plan)).plan, families)
    except ConfigError:
        return ""
    list(export_hf(last, plan, out, family))
    tokens = torch.randint(1, 60, (2, 12), generator=torch.Generator().manual_seed(3))  # no document ends
    theirs: Any = AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True, dtype=torch.float32).eval()
    with torch.no_grad():
        off = (theirs(tokens).logits[..., :64] - neox_core.load(saved).logits(tokens)[..., :64]).abs().max().item()
    return "" if off < MOST else f"exported, its logits are off by {off}"

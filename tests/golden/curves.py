"""One small model per family of recipes, trained for 100 steps: `python tests/golden/curves.py` writes the curves."""

import math
from pathlib import Path
from typing import Any

import torch
from attrs import evolve
from neox_gpt.build import build_model
from neox_gpt.config.plan import GPTPlan
from neox_gpt.testing import example_decoder
from torch import Tensor

from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.parallel.sample_keys import sample_keys
from neox_core.plan.runfile import ComponentRef
from neox_core.run.optimizer import weight_decay_groups

FOLDER = Path(__file__).parent
TEXT = FOLDER.parents[1] / "LICENSE"
STEPS, SAMPLES, SEQ, VOCAB = 100, 4, 48, 128


def part(kind: str, name: str, target: str, settings: str | None = None, **chosen: Any) -> ComponentRef:
    return ComponentRef(kind, name, "neox-golden", "0", target, settings, chosen)


LAYERNORM = part("norm", "layernorm", "neox_norms.layernorm:LayerNorm", "neox_norms.settings:LayerNormSettings")
RMSNORM = part("norm", "rmsnorm", "neox_norms.rmsnorm:RMSNorm", "neox_norms.settings:RMSNormSettings")
GELU = part("activation", "gelu", "neox_activations.gelu:Gelu")
SWIGLU = part("activation", "swiglu", "neox_activations.gated:SwiGLU")
LEARNED = part("position", "learned", "neox_positions.learned:Learned")
ALIBI = part("position", "alibi", "neox_positions.alibi:Alibi")
RPE = part("position", "rpe", "neox_positions.rpe:RelativeBias", "neox_positions.settings:RelativeSettings")


def rotary(share: float) -> ComponentRef:
    settings = "neox_positions.settings:RotarySettings"
    return part("position", "rotary", "neox_positions.rotary:Rotary", settings, rotary_pct=share)


BASE: GPTPlan = evolve(
    example_decoder(),
    num_layers=2,
    hidden_size=64,
    num_attention_heads=4,
    intermediate_size=256,
    seq_length=SEQ,
    max_position_embeddings=SEQ,
    norm=LAYERNORM,
    activation=GELU,
    position=LEARNED,
)
FAMILIES: dict[str, GPTPlan] = {
    "gpt2": evolve(BASE, hidden_dropout=0.1, attention_dropout=0.1),
    "pythia": evolve(
        BASE,
        position=rotary(0.25),
        parallel_residual=True,
        tie_embeddings=False,
        init_method="small_init",
        output_init_method="wang_init",
    ),
    "gpt-j": evolve(BASE, position=rotary(0.5), parallel_residual=True, shared_norm=True, tie_embeddings=False),
    "llama": evolve(
        BASE,
        norm=RMSNORM,
        activation=SWIGLU,
        position=rotary(1.0),
        intermediate_size=176,
        tie_embeddings=False,
        attention_bias=False,
        mlp_bias=False,
    ),
    "mistral": evolve(
        BASE,
        norm=RMSNORM,
        activation=SWIGLU,
        position=rotary(1.0),
        intermediate_size=176,
        num_kv_heads=2,
        tie_embeddings=False,
        attention_bias=False,
        mlp_bias=False,
    ),
    "rpe": evolve(BASE, norm=RMSNORM, position=RPE, reset_attention_mask=True, reset_position_ids=True),
    "alibi, shared layers": evolve(BASE, position=ALIBI, num_layers=4, num_unique_layers=2),
}


def curve(plan: GPTPlan) -> list[float]:
    """The loss of each step: fp32, AdamW, warmup and cosine decay; a line of the text is a document."""
    context = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1234)
    model = build_model(plan, VOCAB, context, eod=ord("\n")).train()
    text = torch.tensor(list(TEXT.read_bytes())).clamp(max=VOCAB - 1)
    optimizer = torch.optim.AdamW(weight_decay_groups(model, 0.1), lr=1.0, betas=(0.9, 0.95), foreach=True)
    losses = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 10) * (0.55 + 0.45 * math.cos(math.pi * step / STEPS))
        loss = model.loss(*_batch(text, step), sample_keys(1, step * SAMPLES, SAMPLES, "cpu"))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def _batch(text: Tensor, step: int) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(text) - SEQ - 1, (SAMPLES,), generator=torch.Generator().manual_seed(step))
    samples = torch.stack([text[start : start + SEQ + 1] for start in starts])
    return samples[:, :-1], samples[:, 1:]


def path(name: str) -> Path:
    return FOLDER / f"{name.replace(', ', '-').replace(' ', '-')}.txt"


if __name__ == "__main__":
    for name, plan in FAMILIES.items():
        path(name).write_text("".join(f"{loss:.6f}\n" for loss in curve(plan)), encoding="utf-8")

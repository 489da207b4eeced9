"""What authors of parts of a decoder test with: the checks of their kinds, and plans of a small decoder.

The checks are as those of `neox_author.testing`, for the kinds that this plugin defines.
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from attrs import evolve
from neox_author.testing.plans import example_plan

from neox_core.plan.runfile import ComponentRef, RunPlan
from neox_gpt.config.plan import GPTPlan

_CHECKS = {
    "check_activation": "layers",
    "check_feed_forward": "feed_forwards",
    "check_mixer": "mixers",
    "check_model_change": "model_changes",
    "check_norm": "layers",
    "check_position": "layers",
    "check_sparse_layout": "layouts",
}

__all__ = ["example_decoder", "example_run", *_CHECKS]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _CHECKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_CHECKS[name]}"), name)


def example_decoder() -> GPTPlan:
    """A decoder of one layer. Its components do not exist."""
    return GPTPlan(
        num_layers=1,
        hidden_size=8,
        num_attention_heads=1,
        intermediate_size=32,
        seq_length=8,
        max_position_embeddings=8,
        norm=_nothing("norm"),
        activation=_nothing("activation"),
        position=_nothing("position"),
        padded_vocab_size=16,
        make_vocab_size_divisible_by=1,
        tie_embeddings=True,
        parallel_residual=False,
        residual_post_norm=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        init_method="normal",
        output_init_method="scaled_normal",
        init_std=0.02,
        attention_softmax_in_fp32=False,
    )


def example_run(run_dir: Path, *, ranks: Sequence[int] = (2,), device: str = "cpu") -> RunPlan:
    """`testing.example_plan` with the decoder, as a causal language model."""
    architecture = ComponentRef(
        "architecture",
        "gpt",
        "neox-gpt",
        "0.1.0",
        "neox_gpt.architecture:GPTArchitecture",
        planner="neox_gpt.config.planner:PLANNER",
    )
    objective = ComponentRef("objective", "causal-lm", "neox-causal-lm", "0.1.0", "neox_causal_lm.objective:CausalLM")
    plan = example_plan(run_dir, ranks=ranks, device=device)
    return evolve(plan, architecture=architecture, objective=objective, model=example_decoder())


def _nothing(kind: str) -> ComponentRef:
    return ComponentRef(kind, "nothing", "nowhere", "0", "nowhere.at_all:Nothing")

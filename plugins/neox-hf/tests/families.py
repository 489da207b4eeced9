"""Tiny models of transformers, randomly initialised, and the ways from and to ours."""

from pathlib import Path
from typing import Any

import torch
from neox_gpt.build import build_model
from neox_gpt.gpt import GPT
from neox_hf.commands import prepare_import
from neox_hf.import_checkpoint import import_hf
from neox_hf.modeling_neox import NeoxConfig, NeoxForCausalLM
from neox_hf.plugin import neox_model_families
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTJConfig,
    GPTJForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from neox_core.checkpoint.read import read_weights
from neox_core.hooks.component import load_path
from neox_core.hooks.loader import load_plugins
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.runfile import RunPlan

SIZES = {
    "vocab_size": 96,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 112,
    "max_position_embeddings": 96,
}


def neox(share: float, **more: Any) -> GPTNeoXForCausalLM:
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": share}
    return GPTNeoXForCausalLM(GPTNeoXConfig(**SIZES, rope_parameters=rope, **more))


MODELS = {
    "pythia": lambda: neox(0.25),
    "serial, tied, all turned": lambda: neox(
        1.0, use_parallel_residual=False, tie_word_embeddings=True, attention_bias=False, hidden_act="gelu_new"
    ),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "llama, grouped, tied, biased": lambda: LlamaForCausalLM(
        LlamaConfig(
            **SIZES,
            num_key_value_heads=2,
            tie_word_embeddings=True,
            attention_bias=True,
            mlp_bias=True,
            rms_norm_eps=1e-2,  # large enough for its place to be seen
            rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        )
    ),
    "rms norms in parallel, gated, biased": lambda: NeoxForCausalLM(
        NeoxConfig(
            **SIZES,
            norm="rmsnorm",
            norm_eps=1e-2,
            gated=True,
            hidden_act="silu",
            rotary_dim=16,
            use_parallel_residual=True,
            tie_word_embeddings=False,
        )
    ),
    "learned positions, grouped, tied": lambda: NeoxForCausalLM(
        NeoxConfig(**SIZES, learned_positions=True, num_key_value_heads=2, hidden_act="gelu_new", mlp_bias=False)
    ),
    "one norm, part turned": lambda: NeoxForCausalLM(
        NeoxConfig(**SIZES, shared_norm=True, use_parallel_residual=True, rotary_dim=8, attention_bias=False)
    ),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, num_key_value_heads=1, sliding_window=None)),
}
OLDER = {"vocab_size": 96, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 96}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
YARN = {"factor": 4.0, "beta_fast": 16.0, "original_max_position_embeddings": 24}
THREE = SIZES | {"num_hidden_layers": 3, "head_dim": 24, "num_key_value_heads": 2}
NO_PADDING = {"pad_token_id": None}  # whose row of the embedding would get no gradient
GEMMA = THREE | NO_PADDING | {"query_pre_attn_scalar": 20, "sliding_window": 9}
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}
MODERN = {
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(**OLDER, n_inner=112)),
    "gptj": lambda: GPTJForCausalLM(GPTJConfig(**OLDER, rotary_dim=8)),
    "llama 3.1": lambda: LlamaForCausalLM(
        LlamaConfig(**THREE, rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3})
    ),
    "mistral in a window": lambda: MistralForCausalLM(MistralConfig(**THREE, sliding_window=7)),
    "qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(**SIZES, num_key_value_heads=2, use_sliding_window=True, sliding_window=11, max_window_layers=1)
    ),
    "qwen3": lambda: Qwen3ForCausalLM(
        Qwen3Config(**THREE, rope_parameters={"rope_type": "yarn", "rope_theta": 1e5, **YARN})
    ),
    "olmo2": lambda: Olmo2ForCausalLM(Olmo2Config(**SIZES, **NO_PADDING, num_key_value_heads=2)),
    "gemma2": lambda: Gemma2ForCausalLM(Gemma2Config(**GEMMA, attn_logit_softcapping=2.0, final_logit_softcapping=3.0)),
    "gemma3_text": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(
            **GEMMA,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                "full_attention": LINEAR,
            },
        )
    ),
}


def roughened(model: Any) -> Any:
    """Gains and biases away from 1 and 0, weights large enough that logits say something."""
    random = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        parameter.data += 0.08 * torch.randn(parameter.shape, generator=random)
    return model.eval()


def imported_to(folder: Path, out: Path, **options: Any) -> RunPlan:
    plan, target = prepare_import(folder, out, None, load_plugins())
    import_hf(folder, out, plan, load_path(target)(), **options)
    return plan


def ours(plan: RunPlan, out: Path) -> GPT:
    context = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1)
    return build_model(plan.model, 96, context, read_weights(out / "step-00000000"))


def family_of(theirs: Any) -> Any:
    targets = {component.name: component.target for component in neox_model_families()}
    return load_path(targets[theirs.config.model_type])()


def tensors(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}

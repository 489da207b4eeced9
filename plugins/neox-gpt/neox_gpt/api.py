"""What other packages may import of this one: the contracts of its kinds, the plan, and building a decoder.

Contracts and plan are light, so that a planner can import them on the host. What needs torch is imported when it is
asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from neox_gpt.change_contracts import ChangeSize, LinearShape, ModelChange
from neox_gpt.config.mlp_size import mlp_size
from neox_gpt.config.plan import GPTPlan, gpt_plan_in
from neox_gpt.contracts import (
    Activation,
    ByHead,
    FeedForward,
    FeedForwardShape,
    FeedForwardSize,
    Mixer,
    MixerShape,
    MixerSize,
    Norm,
    Position,
    PositionShape,
    PositionSize,
    ScoreBias,
)
from neox_gpt.sparse_contracts import LayoutShape, SparseKernel, SparseLayout, SparseUse

if TYPE_CHECKING:
    from neox_gpt.architecture import GPTArchitecture
    from neox_gpt.attention.attention import Attention
    from neox_gpt.attention.blocked import blocked_attention
    from neox_gpt.attention.cache import DecodingCache
    from neox_gpt.attention.flex import TILE, flex_by, tile_lists
    from neox_gpt.attention.scores import Request
    from neox_gpt.attention.size import attention_size
    from neox_gpt.attention.sparse import BlockTable
    from neox_gpt.build import build_decoder_stage, build_model, build_on_meta, parameter_shapes
    from neox_gpt.changes import LinearChange
    from neox_gpt.config.assemble import gpt_plan, linear_layers, weight_type
    from neox_gpt.config.mixers import is_causal
    from neox_gpt.config.planner import GPTPlanner
    from neox_gpt.config.size import DecoderSize
    from neox_gpt.dropout import attention_site, drop_probabilities, site_keys
    from neox_gpt.embedding import Embedding
    from neox_gpt.fold import FoldedReader
    from neox_gpt.generation.generate import Continuation, continuations
    from neox_gpt.generation.sampling import Sampling
    from neox_gpt.gpt import GPT
    from neox_gpt.linear import ColumnLinear, RowLinear
    from neox_gpt.loaded import LoadedRun, load_run
    from neox_gpt.matmul import linear
    from neox_gpt.mlp import MLP
    from neox_gpt.outputs import DecoderOutputs
    from neox_gpt.row import DecoderRow
    from neox_gpt.saved import saved_run
    from neox_gpt.scope import PLAIN, Scope
    from neox_gpt.teacher import Teacher, stored_layers, teacher_in, unlike
    from neox_gpt.tokenizer import tokenizer_of

_HEAVY = {
    "Attention": "attention.attention",
    "BlockTable": "attention.sparse",
    "DecoderSize": "config.size",
    "DecodingCache": "attention.cache",
    "PLAIN": "scope",
    "ColumnLinear": "linear",
    "Continuation": "generation.generate",
    "DecoderOutputs": "outputs",
    "DecoderRow": "row",
    "Embedding": "embedding",
    "FoldedReader": "fold",
    "GPT": "gpt",
    "GPTArchitecture": "architecture",
    "GPTPlanner": "config.planner",
    "LinearChange": "changes",
    "LoadedRun": "loaded",
    "MLP": "mlp",
    "Request": "attention.scores",
    "RowLinear": "linear",
    "Sampling": "generation.sampling",
    "Scope": "scope",
    "TILE": "attention.flex",
    "Teacher": "teacher",
    "attention_site": "dropout",
    "attention_size": "attention.size",
    "blocked_attention": "attention.blocked",
    "build_decoder_stage": "build",
    "build_model": "build",
    "build_on_meta": "build",
    "continuations": "generation.generate",
    "drop_probabilities": "dropout",
    "flex_by": "attention.flex",
    "gpt_plan": "config.assemble",
    "is_causal": "config.mixers",
    "linear": "matmul",
    "linear_layers": "config.assemble",
    "load_run": "loaded",
    "parameter_shapes": "build",
    "saved_run": "saved",
    "site_keys": "dropout",
    "stored_layers": "teacher",
    "teacher_in": "teacher",
    "tile_lists": "attention.flex",
    "tokenizer_of": "tokenizer",
    "unlike": "teacher",
    "weight_type": "config.assemble",
}

__all__ = [
    "GPT",
    "MLP",
    "PLAIN",
    "TILE",
    "Activation",
    "Attention",
    "BlockTable",
    "ByHead",
    "ChangeSize",
    "ColumnLinear",
    "Continuation",
    "DecoderOutputs",
    "DecoderRow",
    "DecoderSize",
    "DecodingCache",
    "Embedding",
    "FeedForward",
    "FeedForwardShape",
    "FeedForwardSize",
    "FoldedReader",
    "GPTArchitecture",
    "GPTPlan",
    "GPTPlanner",
    "LayoutShape",
    "LinearChange",
    "LinearShape",
    "LoadedRun",
    "Mixer",
    "MixerShape",
    "MixerSize",
    "ModelChange",
    "Norm",
    "Position",
    "PositionShape",
    "PositionSize",
    "Request",
    "RowLinear",
    "Sampling",
    "Scope",
    "ScoreBias",
    "SparseKernel",
    "SparseLayout",
    "SparseUse",
    "Teacher",
    "attention_site",
    "attention_size",
    "blocked_attention",
    "build_decoder_stage",
    "build_model",
    "build_on_meta",
    "continuations",
    "drop_probabilities",
    "flex_by",
    "gpt_plan",
    "gpt_plan_in",
    "is_causal",
    "linear",
    "linear_layers",
    "load_run",
    "mlp_size",
    "parameter_shapes",
    "saved_run",
    "site_keys",
    "stored_layers",
    "teacher_in",
    "tile_lists",
    "tokenizer_of",
    "unlike",
    "weight_type",
]


def __getattr__(name: str) -> Any:
    if name not in _HEAVY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"neox_gpt.{_HEAVY[name]}"), name)

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
    from neox_gpt.attention.flex import TILE, flex_by, tile_lists
    from neox_gpt.attention.scores import Request
    from neox_gpt.attention.sparse import BlockTable
    from neox_gpt.build import build_model, build_on_meta, parameter_shapes
    from neox_gpt.changes import LinearChange
    from neox_gpt.config.assemble import linear_layers, weight_type
    from neox_gpt.dropout import site_keys
    from neox_gpt.fold import FoldedReader
    from neox_gpt.linear import ColumnLinear, RowLinear
    from neox_gpt.loaded import LoadedRun, load_run
    from neox_gpt.matmul import linear
    from neox_gpt.mlp import MLP
    from neox_gpt.saved import saved_run
    from neox_gpt.scope import Scope

_HEAVY = {
    "MLP": "mlp",
    "TILE": "attention.flex",
    "BlockTable": "attention.sparse",
    "ColumnLinear": "linear",
    "FoldedReader": "fold",
    "LinearChange": "changes",
    "LoadedRun": "loaded",
    "Request": "attention.scores",
    "RowLinear": "linear",
    "Scope": "scope",
    "build_model": "build",
    "build_on_meta": "build",
    "flex_by": "attention.flex",
    "linear": "matmul",
    "linear_layers": "config.assemble",
    "weight_type": "config.assemble",
    "load_run": "loaded",
    "parameter_shapes": "build",
    "saved_run": "saved",
    "site_keys": "dropout",
    "tile_lists": "attention.flex",
}

__all__ = [
    "MLP",
    "TILE",
    "Activation",
    "BlockTable",
    "ByHead",
    "ChangeSize",
    "ColumnLinear",
    "FeedForward",
    "FeedForwardShape",
    "FeedForwardSize",
    "FoldedReader",
    "GPTPlan",
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
    "Scope",
    "ScoreBias",
    "SparseKernel",
    "SparseLayout",
    "SparseUse",
    "build_model",
    "build_on_meta",
    "flex_by",
    "gpt_plan_in",
    "linear",
    "linear_layers",
    "load_run",
    "mlp_size",
    "parameter_shapes",
    "saved_run",
    "site_keys",
    "tile_lists",
    "weight_type",
]


def __getattr__(name: str) -> Any:
    if name not in _HEAVY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"neox_gpt.{_HEAVY[name]}"), name)

"""What other packages may import of this one: the contracts of its kinds, the plan, and building a decoder."""

from neox_gpt.attention.flex import TILE, flex_by, tile_lists
from neox_gpt.attention.scores import Request
from neox_gpt.attention.sparse import BlockTable
from neox_gpt.build import build_model, parameter_shapes
from neox_gpt.config.plan import GPTPlan, gpt_plan_in
from neox_gpt.contracts import Activation, LayoutShape, Norm, Position, PositionShape, ScoreBias, SparseLayout
from neox_gpt.dropout import site_keys
from neox_gpt.linear import ColumnLinear, RowLinear
from neox_gpt.matmul import linear

__all__ = [
    "TILE",
    "Activation",
    "BlockTable",
    "ColumnLinear",
    "GPTPlan",
    "LayoutShape",
    "Norm",
    "Position",
    "PositionShape",
    "Request",
    "RowLinear",
    "ScoreBias",
    "SparseLayout",
    "build_model",
    "flex_by",
    "gpt_plan_in",
    "linear",
    "parameter_shapes",
    "site_keys",
    "tile_lists",
]

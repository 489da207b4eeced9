"""What other packages may import of this one."""

from neox_deepspeed.engine import Engine, build_engine
from neox_deepspeed.ops import cpu_adam
from neox_deepspeed.pipeline import build_stage
from neox_deepspeed.recompute import recompute_by_deepspeed

__all__ = ["Engine", "build_engine", "build_stage", "cpu_adam", "recompute_by_deepspeed"]

"""DeepSpeed, behind the few operations that a training loop and a checkpoint need. The only importer of deepspeed."""

from neox_core.engine.engine import Engine, build_engine
from neox_core.engine.files import remove_own_folders
from neox_core.engine.measure import print_collectives
from neox_core.engine.pipeline import build_stage
from neox_core.engine.recompute import recompute_by_deepspeed

__all__ = ["Engine", "build_engine", "build_stage", "print_collectives", "recompute_by_deepspeed", "remove_own_folders"]

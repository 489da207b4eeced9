"""DeepSpeed, behind the few operations that a training loop and a checkpoint need. The only importer of deepspeed."""

from neox_core.build.engine.engine import Engine, build_engine

__all__ = ["Engine", "build_engine"]

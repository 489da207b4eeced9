"""What other packages may import of this one."""

from neox_plain.engine import Engine, build_engine

__all__ = ["Engine", "build_engine"]

"""What other packages may import of this one: its engine, and what an engine of another library derives from."""

from neox_plain.base_engine import BaseEngine, plain_options
from neox_plain.clip import copy_marks
from neox_plain.engine import Engine, build_engine
from neox_plain.token_weights import token_weights

__all__ = ["BaseEngine", "Engine", "build_engine", "copy_marks", "plain_options", "token_weights"]

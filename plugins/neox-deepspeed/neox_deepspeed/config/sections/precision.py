"""Precision of weights and matmuls: the keys of neox-plain, whose engine this one extends."""

from neox_plain.api import PrecisionSection

__all__ = ["PrecisionSection"]

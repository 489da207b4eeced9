"""What other packages may use: small C functions; the choice of kernels, their tiles, time, traffic and errors.

Importing it is quick: what measures kernels is imported when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from neox_kernels.compile_c import native, native_for, without_compiler
from neox_kernels.contracts import Kernel, KernelUser

if TYPE_CHECKING:
    from neox_kernels.choose import architecture_of, choose, use_kernels
    from neox_kernels.compare import TOLERANCE, Verdict, compare, error_of
    from neox_kernels.measure import times_of
    from neox_kernels.roofline import Traffic, bytes_of, traffic_of
    from neox_kernels.tiles import Row, Tile, Tiled, tiles_for, width_of, write_table

_LATER = {
    "choose": ("architecture_of", "choose", "use_kernels"),
    "compare": ("TOLERANCE", "Verdict", "compare", "error_of"),
    "measure": ("times_of",),
    "roofline": ("Traffic", "bytes_of", "traffic_of"),
    "tiles": ("Row", "Tile", "Tiled", "tiles_for", "width_of", "write_table"),
}


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(import_module(f"neox_kernels.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "TOLERANCE",
    "Kernel",
    "KernelUser",
    "Row",
    "Tile",
    "Tiled",
    "Traffic",
    "Verdict",
    "architecture_of",
    "bytes_of",
    "choose",
    "compare",
    "error_of",
    "native",
    "native_for",
    "tiles_for",
    "times_of",
    "traffic_of",
    "use_kernels",
    "width_of",
    "without_compiler",
    "write_table",
]

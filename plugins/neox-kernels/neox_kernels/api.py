"""What other plugins and benchmarks may use: tables of tiles, the time, the traffic and the errors of a kernel."""

from neox_kernels.compare import TOLERANCE, Verdict, compare, error_of
from neox_kernels.measure import times_of
from neox_kernels.roofline import Traffic, bytes_of, traffic_of
from neox_kernels.tiles import Row, Tile, Tiled, tiles_for, width_of, write_table

__all__ = [
    "TOLERANCE",
    "Row",
    "Tile",
    "Tiled",
    "Traffic",
    "Verdict",
    "bytes_of",
    "compare",
    "error_of",
    "tiles_for",
    "times_of",
    "traffic_of",
    "width_of",
    "write_table",
]

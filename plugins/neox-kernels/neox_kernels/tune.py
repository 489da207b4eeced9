"""`neox kernels tune`: the fastest tile of each kernel on this GPU, among the few that it offers."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from neox_core.hooks.component import load_path
from neox_core.parallel.context import DTYPES
from neox_core.plan.runfile import ComponentRef
from neox_kernels.choose import architecture_of, load_kernel, why_not
from neox_kernels.compare import TOLERANCE, compare
from neox_kernels.measure import times_of
from neox_kernels.tiles import Row, Tile, width_of

GAIN = 0.02
"""The share of its time that another tile has to save, since less is noise."""

Times = Callable[[Any, Sequence[Any]], Sequence[float]]


def fastest(timings: Mapping[Tile, Sequence[float]]) -> Tile:
    """The tile with the least median time, in seconds; the first one unless another saves GAIN of its time."""
    medians = {tile: statistics.median(times) for tile, times in timings.items()}
    first = next(iter(medians))
    best = min(medians, key=lambda tile: medians[tile])
    return best if medians[best] < (1 - GAIN) * medians[first] else first


def tuned(
    rows: Sequence[Mapping[str, Any]], device: torch.device, dtype: torch.dtype, by: str, times: Times = times_of
) -> Iterator[tuple[Row | None, str]]:
    """(a row of a table or None, a line for people) of each kernel and width.

    rows: ops with their references and offers. by: who measures, for the table. times: seconds of a call, repeated.
    """
    for row in rows:
        for offer in (ComponentRef(**each) for each in row["offers"]):
            yield from _of_kernel(offer, load_path(row["reference"]), device, dtype, by, times)


def _of_kernel(
    offer: ComponentRef, reference: Any, device: torch.device, dtype: torch.dtype, by: str, times: Times
) -> Iterator[tuple[Row | None, str]]:
    kernel: Any = load_kernel(offer)
    if not hasattr(kernel, "candidates"):
        yield None, f"{offer.name}: has no tiles to choose from"
        return
    with offer.blamed():
        examples = iter(kernel.tuning_examples(dtype, device))
    name = next(name for name, each in DTYPES.items() if each == dtype)
    while True:
        with offer.blamed():
            arguments = next(examples, None)
        if arguments is None:
            return
        width = width_of(arguments[0].shape)
        title = f"{offer.name} {name} width {width}"
        if reasons := why_not(offer, kernel.why_not, tuple(arguments[0].shape), dtype, device):
            yield None, f"{title}: cannot run: {', '.join(reasons)}"
            continue
        timings: dict[Tile, Sequence[float]] = {}
        for tile in kernel.candidates(width):
            found = _tried(kernel, reference, arguments, {(name, width): tile}, times, TOLERANCE[dtype])
            if isinstance(found, str):
                yield None, f"{title}: not {_words(tile)}: {found}"
            else:
                timings[tile] = found
        if Tile() not in timings:
            yield None, f"{title}: left as it is"
            continue
        best = fastest(timings)
        median = statistics.median(timings[best]) * 1e3
        plain = statistics.median(timings[Tile()]) * 1e3
        row = Row(f"{offer.plugin}:{offer.name}", architecture_of(device), width, name, best.block, best.warps,
                  best.stages, by)  # fmt: skip
        yield row, f"{title}: {_words(best)}, {median:.3f} ms, of {len(timings)} tried; by itself {plain:.3f} ms"


def _tried(
    kernel: Any,
    reference: Any,
    arguments: Sequence[Any],
    tiles: Mapping[tuple[str, int], Tile],
    times: Times,
    limit: float,
) -> Sequence[float] | str:
    """Seconds of each repetition; a text: why the tile is not taken. It is right before it is measured."""
    kernel.use_tiles(tiles)
    try:
        if fault := compare(kernel, reference, arguments).fault(limit):
            return f"WRONG: {fault}"
        return times(kernel, arguments)
    except Exception as error:  # noqa: BLE001 a compiler or a GPU that cannot take the tile
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
    finally:
        kernel.use_tiles({})


def _words(tile: Tile) -> str:
    parts = [f"{name} {value}" for name, value in (("block", tile.block), ("warps", tile.warps),
                                                   ("stages", tile.stages)) if value]  # fmt: skip
    return ", ".join(parts) or "as by itself"

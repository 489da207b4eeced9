"""Kernels that are cut by a table: the same results, from other programs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from neox_author.api import installed_ops
from neox_kernels.api import TOLERANCE, Row, Tile, compare, tiles_for, width_of, write_table
from neox_triton.launch import Launch
from neox_triton.plugin import KERNELS, target_of

from neox_core.hooks.component import load_path
from neox_core.hooks.loader import load_plugins

CPU = torch.device("cpu")
REFERENCES = {op.name: op.reference for op in installed_ops(load_plugins().registry)}
TILED = [op for op in KERNELS if load_path(target_of(op)).tiling is not None]


def started(kernel: Any, arguments: tuple[Any, ...]) -> Launch:
    with kernel.recording() as launches:
        kernel(*arguments)
    return launches[0]


@pytest.mark.parametrize("op", TILED)
def test_other_tiles_give_the_same(op: str, tmp_path: Path) -> None:
    kernel: Any = load_path(target_of(op))
    arguments = next(iter(kernel.examples(torch.float32, CPU, large=False)))
    width = width_of(arguments[0].shape)
    others = kernel.candidates(width)[1:]
    assert others
    chosen = min(others, key=lambda tile: (tile.block or 2**14, -tile.warps))
    name, table = f"neox-triton:{op}.triton", tmp_path / "tiles.csv"
    write_table(table, [Row(name, "cpu", width, "fp32", chosen.block, chosen.warps, chosen.stages, "a test")])
    plain = started(kernel, arguments)
    kernel.use_tiles(tiles_for(kernel, name, "cpu", table))
    try:
        cut = started(kernel, arguments)
        verdicts = [compare(kernel, load_path(REFERENCES[op]), arguments)]
        kernel.use_tiles({("fp32", width): Tile(64, 2, 1)})  # half of a row
        verdicts.append(compare(kernel, load_path(REFERENCES[op]), arguments))
    finally:
        kernel.use_tiles({})
    assert (cut.warps, cut.stages, cut.constants) != (plain.warps, plain.stages, plain.constants)
    assert [verdict.faults for verdict in verdicts] == [(), ()]
    assert max(verdict.error for verdict in verdicts) <= TOLERANCE[torch.float32]
    assert started(kernel, arguments).constants == plain.constants


def test_the_table_that_comes_with_the_kernels_is_one_that_they_take() -> None:
    for op in TILED:
        for architecture in ("sm_80", "sm_90", "sm_100", "gfx942"):
            tiles_for(load_path(target_of(op)), f"neox-triton:{op}.triton", architecture, Path("none.csv"))


def test_blocks_are_no_longer_than_rows_and_few_are_tried() -> None:
    meta = torch.device("meta")
    for op in KERNELS:
        kernel = load_path(target_of(op))
        examples = list(kernel.tuning_examples(torch.bfloat16, meta))
        assert bool(examples) == (op in TILED)
        widths = [width_of(arguments[0].shape) for arguments in examples]
        assert len(set(widths)) == len(widths)
        for width in widths:
            candidates = kernel.candidates(width)
            assert 4 <= len(candidates) <= 16
            assert len(set(candidates)) == len(candidates)
            assert not kernel.tiling.inside or all(each.block <= width for each in candidates)

"""Kernels compiled for GPUs that are not here. All of them: python -m neox_triton.ahead, which writes the table."""

import importlib.metadata
import os
import random
import re
from pathlib import Path

import pytest
import torch
from attrs import evolve
from neox_triton.ahead import DTYPES, RECIPES, TARGETS, Launch, compiled, digest, every_start, launches_of, read_table
from neox_triton.plugin import KERNELS

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter compiles nothing")

Starts = dict[str, dict[tuple[str, str], Launch]]
PINNED = "3.9.0"
SHARED = {"sm_80": 163, "sm_90": 227, "sm_100": 227, "gfx942": 64}
"""KiB that a program may have."""
SPARED = 10
"""Kernels that a run of the tests compiles; another ten each time the sources change."""


@pytest.fixture(scope="module")
def starts() -> Starts:
    """Of each dtype, by op and digest."""
    return {name: {(op, digest(launch)): launch for op, launch in every_start(dtype)} for name, dtype in DTYPES.items()}


def test_no_kernel_spills() -> None:
    rows = read_table()
    assert {row.op for row in rows} == set(KERNELS)
    assert [row for row in rows if row.spills] == []
    assert all(0 < row.registers <= 512 for row in rows)
    assert all(row.shared <= SHARED[row.target] * 1024 for row in rows)


def test_the_table_is_of_these_sources(starts: Starts) -> None:
    rows = read_table()
    there = {(row.op, row.source, row.target) for row in rows}
    wanted = {name: {(*start, target) for start in of for target in TARGETS} for name, of in starts.items()}
    assert wanted["bf16"] <= there <= set().union(*wanted.values()), "python -m neox_triton.ahead"


def test_every_recipe_is_among_the_sizes() -> None:
    found = set()
    for path in (Path(__file__).parents[3] / "configs").rglob("*.yml"):
        text = path.read_text()
        (width,) = re.findall(r"^hidden-size: (\d+)$", text, re.M)
        (heads,) = re.findall(r"^num-attention-heads: (\d+)$", text, re.M)
        found.add((int(width), int(heads)))
    assert len(found) > 10
    assert found == set(RECIPES)


def test_compiles_as_the_table_says(starts: Starts) -> None:
    rows = read_table()
    every = {key: launch for each in starts.values() for key, launch in each.items()}
    for row in random.Random(repr(sorted(every))).sample(rows, SPARED):
        found = compiled(row.op, every[row.op, row.source], row.target, row.dtype)
        assert found.spills == 0
        if importlib.metadata.version("triton") == PINNED:  # another compiler may take another register
            assert found == row
        else:
            assert evolve(found, registers=row.registers, shared=row.shared) == row


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_sums_of_narrow_heads_in_fp32_spill_nothing(target: str) -> None:
    launches = launches_of("block_sparse_attention", torch.float32)
    launch = next(each for each in launches if each.fn.fn.__name__ == "add_up" and each.constants["DIM"] == 48)
    assert compiled("block_sparse_attention", launch, target).spills == 0


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_block_sparse_attention_of_fp32_spills_nothing(target: str) -> None:
    launches = launches_of("block_sparse_attention", torch.float32)
    picked = [each for each in launches if each.constants.get("BLOCK") == 64 and each.constants["DIM"] in (64, 128)]
    assert {each.fn.fn.__name__ for each in picked} == {"forward", "backward_queries", "backward_keys"}
    for launch in picked:
        assert compiled("block_sparse_attention", launch, target).spills == 0


@pytest.mark.parametrize(("width", "documents"), [(64, False), (128, True), (256, True)])
def test_keys_of_small_blocks_in_fp32_spill_nothing_under_dropout(width: int, documents: bool) -> None:
    launches = launches_of("block_sparse_attention", torch.float32)
    small = [each for each in launches if each.constants.get("BLOCK") == 16 and each.constants["DIM"] == width]
    (launch,) = (each for each in small if each.fn.fn.__name__ == "backward_keys")
    assert launch.constants["DROPS"]
    launch = evolve(launch, constants={**launch.constants, "DOCUMENTS": documents})
    for target in ("sm_80", "sm_90", "sm_100"):
        assert compiled("block_sparse_attention", launch, target).spills == 0

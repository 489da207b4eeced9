"""How kernels are cut: by dtype and shape, and by a table where it has a row, so a resumed run gives the same bits."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import field, frozen
from neox_kernels.api import Tile, width_of
from torch import Tensor

MAX_WIDTH = 16384
"""Elements of a row that one program holds."""
MAX_ROW_BYTES = 48 * 2**10
"""Of a row of a norm: 16384 numbers of fp32 would spill registers."""

WARPS = ((1024, 4), (4096, 8), (MAX_WIDTH, 16))
"""(elements of a row up to, warps of its program)."""

BLOCK_ELEMENTS, BLOCK_WARPS = 4096, 4
"""Numbers of blocks that a program packs into signs, or unpacks, and its warps."""

PROGRAMS = 512
"""Programs among which the rows are dealt where gradients of a weight are summed: each writes one partial sum."""

CHUNK_BYTES = 512 * 2**20
"""Logits that exist at once in cross-entropy, in the dtype of the products."""

Tiles = tuple[tuple[int, tuple[int, int]], ...]
"""(width of a head up to, (queries, keys) that a program of block-sparse attention multiplies at once)."""

QUERY_TILES: dict[int, Tiles] = {
    2: ((128, (64, 32)), (256, (32, 32))),
    4: ((128, (32, 32)), (256, (32, 16))),
}
FORWARD_TILES: dict[int, Tiles] = {2: QUERY_TILES[2], 4: ((256, (32, 16)),)}
KEY_TILES: dict[int, Tiles] = {2: ((128, (32, 32)), (256, (16, 32))), 4: ((256, (16, 16)),)}
"""By the bytes of a number: what spills no registers going over keys, and over queries."""
KEYS_WIDTH = 64
"""What a narrower head is padded to where a program has keys: a head of 32 spilled on sm_100, of 48 and 64 not."""
SPARSE_WARPS = 4
FORWARD_WARPS, KEY_STAGES = {2: SPARSE_WARPS, 4: 8}, {2: 0, 4: 1}
"""By the bytes of a number: registers hold both factors of a product in fp32. Stages 0: as Triton has them."""
KEY_REGISTERS = {2: 0, 4: 255}
"""Without a limit the assembler spills up to 32 bytes a thread to fit one more program, though registers are left."""
TALL = 64
"""Tokens of the rows of small blocks that a program of block-sparse attention takes together."""
LONGEST_LIST = 4096
"""Tokens of queries of a head that one program sums over for its keys: a key that all see has several programs."""


def warps_of(block: int) -> int:
    """Warps of a program that holds `block` elements of a row."""
    return next(warps for limit, warps in WARPS if block <= limit)


_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@frozen(eq=False)
class Tiling:
    """How the kernels of an op are cut, by the dtype and the rows of its first tensor.

    blocks: elements that a program takes together; warps: its warps, 0: as many as `warps_of` says; stages: of its
    loops, 0: as Triton has them. The first of each are the op's own, the others may be tried, and a table may have any.
    inside: whether a block lies in one row.
    """

    blocks: tuple[int, ...]
    warps: tuple[int, ...]
    stages: tuple[int, ...] = (0,)
    inside: bool = True
    _table: dict[tuple[str, int], Tile] = field(factory=dict, init=False)

    def of(self, x: Tensor) -> Tile:
        """For an op whose first tensor is x."""
        tabled = self._table.get((_NAMES.get(x.dtype, ""), width_of(x.shape or (1,))), Tile())
        return Tile(tabled.block or self.blocks[0], tabled.warps or self.warps[0], tabled.stages or self.stages[0])

    def use(self, table: Mapping[tuple[str, int], Tile]) -> None:
        """Take the tiles of a table, and no earlier one's."""
        self._table.clear()
        self._table.update(table)

    def candidates(self, width: int) -> tuple[Tile, ...]:
        """`Tile()`, and what else may be tried for rows of `width` elements: a block is no longer than they are."""
        blocks = dict.fromkeys(min(each, width) if self.inside else each for each in self.blocks)
        tiles = [Tile(block, warps) for block in blocks for warps in self.warps if warps]
        tiles += [Tile(0, 0, stages) for stages in self.stages if stages]
        return (Tile(), *(each for each in tiles if each != Tile(next(iter(blocks)), self.warps[0])))


COLUMNS = (1024, 512, 2048), (4, 2, 8)
"""Elements of a row that a program of an elementwise kernel works on, and its warps."""
SOFTMAXES = (2048, 1024, 4096), (0, 4, 8)
"""Elements of rows that a program of a softmax works on, where one row has not so many."""
NORMS = (8192, 4096, 2048), (0, 4, 8, 16), (0, 1, 2)
"""Of a row, the elements that a program has at most where it sums gradients of a weight by column."""

LAYER_NORM, RMS_NORM = Tiling(*NORMS), Tiling(*NORMS)
SCALE_NORM = Tiling((MAX_WIDTH,), *NORMS[1:])
GEGLU, SWIGLU, BIAS_GELU, BIAS_DROPOUT_ADD = (Tiling(*COLUMNS) for _ in range(4))
ADAM_STEP = Tiling(*COLUMNS, inside=False)
CAUSAL_SOFTMAX, MASKED_SOFTMAX = (Tiling(*SOFTMAXES, inside=False) for _ in range(2))
ROTARY_PAIR = Tiling((2048, 1024, 4096), (4, 2, 8), inside=False)
"""Halves of heads of one token that a program turns."""
CROSS_ENTROPY = Tiling((4096, 2048, 8192), (8, 4, 16), (0, 1, 2), inside=False)
"""Logits of a token that a program looks at together."""
SM3_STEP = Tiling((128, 64, 256), (4, 2, 8), inside=False)
"""Columns of a matrix of which a program steps TILE_ROWS rows."""
TILE_ROWS = 16

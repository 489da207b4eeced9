"""How kernels are cut: data, chosen by shape alone, so that a resumed run takes the same and gives the same bits."""

MAX_WIDTH = 16384
"""Elements of a row that one program holds."""
MAX_ROW_BYTES = 48 * 2**10
"""Of a row of a norm: 16384 numbers of fp32 would spill registers."""

WARPS = ((1024, 4), (4096, 8), (MAX_WIDTH, 16))
"""(elements of a row up to, warps of its program)."""

PART_OF_ROW = 8192
"""Of a row, the elements that a program has at most where it sums gradients of a weight by column."""

COLUMNS = 1024
"""Elements of a row that a program of an elementwise kernel works on, and its warps."""
COLUMN_WARPS = 4

SOFTMAX_ELEMENTS = 2048
"""Elements of rows that a program of a softmax works on, where one row has not so many."""

BLOCK_ELEMENTS = 4096
"""Numbers of blocks that a program packs into signs, or unpacks."""

PROGRAMS = 512
"""Programs among which the rows are dealt where gradients of a weight are summed: each writes one partial sum."""

ROTARY_ELEMENTS = 2048
"""Halves of heads of one token that a program turns."""

VOCABULARY = 4096
"""Logits of a token that a program looks at together, and its warps."""
VOCABULARY_WARPS = 8

CHUNK_BYTES = 512 * 2**20
"""Logits that exist at once in cross-entropy, in the dtype of the products."""

Tiles = tuple[tuple[int, tuple[int, int]], ...]
"""(width of a head up to, (queries, keys) that a program of block-sparse attention multiplies at once)."""

QUERY_TILES: dict[int, Tiles] = {
    2: ((128, (64, 32)), (256, (32, 32))),
    4: ((128, (32, 32)), (256, (32, 16))),
}
KEY_TILES: dict[int, Tiles] = {2: ((128, (32, 32)), (256, (16, 32))), 4: ((128, (16, 32)), (256, (16, 16)))}
"""By the bytes of a number: what spills no registers going over keys, and over queries."""
SPARSE_WARPS = 4


def warps_of(block: int) -> int:
    """Warps of a program that holds `block` elements of a row."""
    return next(warps for limit, warps in WARPS if block <= limit)


TILE_ROWS, TILE_COLUMNS = 16, 128
"""Of a matrix, what a program steps at once."""

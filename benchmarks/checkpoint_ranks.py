"""A checkpoint of thousands of ranks: how long one rank combines what all have written, and how long each one looks.

    python benchmarks/checkpoint_ranks.py FOLDER [--ranks 128,1024,8192] [--times 3] [--rows]

The ranks are synthetic: each has a file of 8 bytes for each of its parts, and the note that it would have written.
They are four stages of a pipeline with 100 weights each, and one state of the optimizer for each weight. `zero 1`: a
weight is whole, and a rank has one range of the states of its stage. `every`: a rank has a slice of each weight and of
each state of its stage, 200 pieces, as at ZeRO 3 or with many tensor-parallel ranks. What is measured:

* combine: the first rank writes the manifest, after all ranks have written their files.
* look: a rank builds its reader and finds the pieces that it loads, each rank for itself, in parallel: in `zero 1` all
  weights of its stage and its own range of the states, in `every` its own pieces.
* read: the bytes that it reads for this.

Of combine and look what is measured is the time of the processor. Another checkout's `neox_core` is measured by
`PYTHONPATH=CHECKOUT python benchmarks/checkpoint_ranks.py ...`.
"""

import argparse
import json
import shutil
import time
from itertools import product
from pathlib import Path

from results import append_row

from neox_core.checkpoint import read, write
from neox_core.checkpoint.manifest import Piece
from neox_core.checkpoint.publish import write_manifest
from neox_core.checkpoint.read import CheckpointReader
from neox_core.checkpoint.write import RankContents
from neox_core.plan.stored.saved import MANIFEST, RUN, STATE, rank_folder, rank_note

STAGES, TENSORS, WIDTH, EACH = 4, 100, 1024, 8
HASH = "0" * 64
BY_RANK = hasattr(CheckpointReader, "pieces_with")
"""Whether this is not an earlier version, whose parts have all pieces of a tensor."""


def pieces_of(rank: int, ranks: int, case: str, *, loads: bool = False) -> list[Piece]:
    """Of the weights of its stage and one state of each, and the generators of the rank.

    loads: what it loads, which in `zero 1` are all weights of its stage; else what it stores.
    """
    of_stage = ranks // STAGES
    stage, place = divmod(rank, of_stage)
    stem, found = f"{rank_folder(rank)}rank-{rank:05d}", list[Piece]()
    weights, optimizer = f"{stem}.weights.safetensors", f"{stem}.optimizer.safetensors"
    shape = (of_stage * EACH, WIDTH)
    count = EACH * WIDTH
    ends = (place * TENSORS * count, (place + 1) * TENSORS * count)  # of all states of the stage in a row
    for number in range(TENSORS):
        name, size = f"layers.{stage}.{number:03d}.weight", of_stage * count
        low, high = (max(ends[0], number * size), min(ends[1], (number + 1) * size))
        state, weight = f"state/exp_avg/{name}", f"weight/{name}"
        if case == "every":
            cut = ((EACH * place, EACH * place + EACH), (0, WIDTH))
            found.append(Piece(weights, weight, "weight", name, "BF16", shape, slice=cut))
            span = (place * count, (place + 1) * count)
            found.append(Piece(optimizer, state, "state", name, "F32", shape, span, "exp_avg"))
        else:
            if loads or number % of_stage == place:
                found.append(Piece(weights, weight, "weight", name, "BF16", shape))
            if low < high:
                span = (low - number * size, high - number * size)
                found.append(Piece(optimizer, state, "state", name, "F32", shape, span, "exp_avg"))
    for name in ("torch", "numpy"):
        owned = f"{rank}/{name}"
        found.append(Piece(f"{stem}.rng.safetensors", f"rng/{owned}", "rng", owned, "U8", (16,), rank=rank))
    return found


def write_note(folder: Path, pieces: list[Piece], rank: int) -> None:
    contents = RankContents(rank, pieces=pieces)
    write.write_rank(folder, contents)
    note = rank_note(folder, rank)
    told = json.loads(note.read_text())
    for file in sorted({piece.file for piece in contents.pieces}):
        told["files"][file] = [8, HASH]
        (folder / file).write_bytes(b"12345678")
    note.write_text(json.dumps(told))


def look(folder: Path, pieces: list[Piece], rank: int) -> int:
    """As a rank of the same layout does, but for the tensors, which are not there. Returns the bytes that it reads."""
    parts, real = set[str](), read.read_pieces
    read.read_pieces = lambda path, seal: parts.add(path.name) or real(path, seal)
    try:
        reader = CheckpointReader(folder)
        for each in (each for each in pieces if each.rank is None):
            key = each.kind, each.name, each.state
            if BY_RANK:
                assert reader.pieces_with(key, each.slice or (), *each.span)
            else:
                reader._pieces_of(*key)  # noqa: SLF001
        reader.names_of_rank("rng", rank)
    finally:
        read.read_pieces = real
    return sum((folder / each).stat().st_size for each in (MANIFEST, RUN, STATE, *parts))


def measure(folder: Path, ranks: int, case: str) -> dict[str, float]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for rank in range(ranks):
        write_note(folder, pieces_of(rank, ranks, case), rank)
    began = time.process_time()
    write_manifest(folder, 7, ranks, "{}", {}, optimizer=True, rng=True)
    combined = time.process_time()
    mine = pieces_of(ranks // 2, ranks, case, loads=True)
    ready = time.process_time()
    size = look(folder, mine, ranks // 2)
    looked = time.process_time() - ready
    most = max(sum(1 for _ in each.iterdir()) for each in (folder, *folder.glob("ranks-*")))
    shutil.rmtree(folder)
    return {
        "combine (CPU s)": combined - began,
        "look (CPU s)": looked,
        "read (MB)": size / 1e6,
        "files": float(most),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", default="128,1024,8192")
    parser.add_argument("--cases", default="zero 1,every")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--rows", action="store_true", help="append rows to benchmarks/results.csv")
    words = parser.parse_args()
    form = "parts by rank" if BY_RANK else "parts by tensor"
    for case, ranks in product(words.cases.split(","), map(int, words.ranks.split(","))):
        found = [measure(words.folder / "checkpoint", ranks, case) for _ in range(words.times)]
        for what in found[0]:
            values, label = [each[what] for each in found], f"{ranks} ranks, {case}, {form}: {what}"
            print(f"{label}: {', '.join(f'{each:.3g}' for each in values)}", flush=True)
            if words.rows:
                name, _, unit = label.partition(" (")
                append_row("checkpoint_ranks", name, unit.rstrip(")") or "in a folder", values)


if __name__ == "__main__":
    main()

"""A checkpoint of thousands of ranks: how long one rank combines what all have written, and how long each one looks.

    python benchmarks/checkpoint_ranks.py FOLDER [--ranks 128,1024,8192] [--times 3] [--rows]

The ranks are synthetic: each has a file of 8 bytes for each of its parts, and the note that it would have written.
They are four stages of a pipeline with 100 weights each, and one state of the optimizer for each weight. `zero 1`: a
weight is whole, and a rank has one range of the states of its stage. `every`: a rank has a slice of each weight and of
each state of its stage, 200 pieces, as at ZeRO 3 or with many tensor-parallel ranks. What is measured:

* combine: the first rank writes the manifest, after all ranks have written their files.
* look: a rank builds its reader and finds the pieces of the tensors of its stage, each rank for itself, in parallel.
* bytes: what it reads for this.
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
from neox_core.plan.stored.saved import MANIFEST, RUN, STATE, rank_note

STAGES, TENSORS, WIDTH, EACH = 4, 100, 1024, 8
HASH = "0" * 64
PARTED = hasattr(read, "read_pieces")
"""Whether this is not an earlier version, which had one manifest."""


def pieces_of(rank: int, ranks: int, case: str) -> list[Piece]:
    """Of the weights of its stage and one state of each, and the generators of the rank."""
    of_stage = ranks // STAGES
    stage, place = divmod(rank, of_stage)
    folder = f"ranks-{rank // 256:05d}/" if PARTED and rank >= 256 else ""
    stem, found = f"{folder}rank-{rank:05d}", list[Piece]()
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
            if number % of_stage == place:
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
    """As a rank of the same layout does, which takes each weight and its ranges. Returns the bytes that it has read."""
    parts = set[str]()
    if PARTED:
        real = read.read_pieces
        read.read_pieces = lambda path, seal: parts.add(path.name) or real(path, seal)
    reader = CheckpointReader(folder)
    for each in pieces:
        if PARTED and each.rank is None:
            find = reader._pieces_of  # noqa: SLF001, without the tensors, which are not there
            find(each.kind, each.name, each.state)
    reader.names_of_rank("rng", rank)
    return sum((folder / each).stat().st_size for each in (MANIFEST, RUN, STATE, *parts))


def measure(folder: Path, ranks: int, case: str) -> dict[str, float]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for rank in range(ranks):
        write_note(folder, pieces_of(rank, ranks, case), rank)
    began = time.monotonic()
    write_manifest(folder, 7, ranks, "{}", {}, optimizer=True, rng=True)
    combined = time.monotonic()
    mine = pieces_of(ranks // 2, ranks, case)
    ready = time.monotonic()
    size = look(folder, mine, ranks // 2)
    looked = time.monotonic() - ready
    most = max(sum(1 for _ in each.iterdir()) for each in (folder, *folder.glob("ranks-*")))
    shutil.rmtree(folder)
    return {
        "combine (s)": combined - began,
        "look (s)": looked,
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
    form = "parts" if PARTED else "one manifest"
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

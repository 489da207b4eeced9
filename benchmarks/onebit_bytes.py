"""Bytes that a rank sends in a step: an all-reduce in fp32 and bf16 against a compressed step of 1-bit Adam.

    python benchmarks/onebit_bytes.py [--ranks 2 4]

Counted are the tensors that torch hands to its collectives over gloo, for 14 M parameters in the tensors of
benchmarks/train_cpu.py's smallest model: a ring sends 2 (n - 1) / n of what it adds up, an all-to-all all but the
rank's own part, an all-gather its part to all others. The numbers are exact; runs are ranks. Rows go to results.csv.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from neox_author.testing import build, load_only
from results import append_row

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins/neox-onebit/tests"))
from drive_ranks import OnTheWire

VOCAB, HIDDEN, LAYERS, FREEZE = 50304, 128, 6, 1
LAYER = [(3 * HIDDEN, HIDDEN), (HIDDEN, HIDDEN), (4 * HIDDEN, HIDDEN), (HIDDEN, 4 * HIDDEN)]
SMALL = [(3 * HIDDEN,), (HIDDEN,), (4 * HIDDEN,), (HIDDEN,), (HIDDEN,), (HIDDEN,), (HIDDEN,), (HIDDEN,)]
SHAPES = [(VOCAB, HIDDEN), *(LAYER + SMALL) * LAYERS, (HIDDEN,), (HIDDEN,), (VOCAB, HIDDEN)]


def count(rank: int, ranks: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        with OnTheWire(ranks) as wire:
            for shape in SHAPES:
                dist.all_reduce(torch.zeros(shape, dtype=dtype))
        found[f"all-reduce in {str(dtype).removeprefix('torch.')}"] = sum(wire.sent.values())
    entry = load_only("neox-onebit").find("optimizer", "OneBitAdam")
    weights = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    settings = build(entry, freeze_step=FREEZE, comm_backend_name="gloo")
    optimizer = entry.load()([{"params": weights}], settings, group=dist.group.WORLD)
    for _ in range(FREEZE + 1):
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        with OnTheWire(ranks) as wire:
            optimizer.step()
    found["OneBitAdam, compressed"] = sum(wire.sent.values())
    torch.save(found, Path(folder, f"{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4])
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for ranks in parser.parse_args().ranks:
        with tempfile.TemporaryDirectory() as folder:
            processes.spawn(count, (ranks, folder), nprocs=ranks)
            found = [torch.load(Path(folder, f"{rank}.pt")) for rank in range(ranks)]
        for case in found[0]:
            append_row("onebit_bytes", f"{ranks} ranks: {case}", "bytes", [each[case] for each in found])


if __name__ == "__main__":
    main()

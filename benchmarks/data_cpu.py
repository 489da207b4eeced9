"""Data on one core: the order of samples, tokenizing and writing next to a plain loop of `tokenizers`, reading samples.

`python benchmarks/data_cpu.py`: rows are appended to benchmarks/results.csv. Ours and the peer's run in alternation.
`--documents 1e8` for another size of the order.
"""

import argparse
import os
import resource
import subprocess
import sys
import sysconfig
import tempfile
import time
from itertools import islice
from pathlib import Path

from results import append_row

RUNS = 3
TEXT_BYTES = 24 << 20
SEQ_LENGTH = 2048
RATE = "MB/s of processor time"

ORDER = """
import resource, sys, time
import numpy as np
from neox_core.build.order import build_order
count = int(float(sys.argv[1]))
sizes = np.random.default_rng(0).integers(1, 1000, count, dtype=np.int32)
documents, samples = np.arange(count, dtype=np.int32), int(sizes.sum(dtype=np.int64)) // 2048 - 1
before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
order = build_order(sizes, documents, 2048, samples, 1234)
seconds, after = time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
held = order.documents.nbytes + order.samples.nbytes + order.shuffle.nbytes
print(seconds, held / len(order), (after - before) / 1024 - held / 2**20)
"""

PEER = """
import sys, time
from pathlib import Path
from tokenizers import Tokenizer, models, pre_tokenizers
files, vocab, merges = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
tokenizer = Tokenizer(models.BPE.from_file(vocab, merges))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
texts = [path.read_text() for path in sorted(files.iterdir())]
began = time.process_time()
for first in range(0, len(texts), 64):
    for encoding in tokenizer.encode_batch_fast(texts[first : first + 64]):
        encoding.ids
print(time.process_time() - began)
"""


def alone(code: str, *args: str) -> list[float]:
    """The numbers that a process on one core prints."""
    env = {**os.environ, "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code, *args], env=env, check=True, capture_output=True, text=True)
    return [float(number) for number in done.stdout.split()]


def order(documents: str) -> None:
    runs = [alone(ORDER, documents) for _ in range(RUNS)]
    for unit, values in zip(("s", "bytes/sample", "MiB over the arrays"), zip(*runs, strict=True), strict=True):
        append_row("data_cpu", f"order of {float(documents):.0e} documents", unit, list(values))


def texts(folder: Path) -> float:
    """Source files of the standard library as .txt; returns their MB."""
    root, held = Path(sysconfig.get_path("stdlib")), 0
    found = (path for path in sorted(root.rglob("*.py")) if "site-packages" not in path.parts)
    for number, path in enumerate(islice(found, 5000)):
        raw = path.read_bytes().decode("utf-8", errors="ignore").encode()
        (folder / f"{number:05}.txt").write_bytes(raw)
        held += len(raw)
        if held >= TEXT_BYTES:
            break
    return held / 1e6


def prepare(source: Path, out: Path, *more: str) -> float:
    """Seconds of processor time of the whole command, which other work on the machine does not change much."""
    env = {**os.environ, "RAYON_NUM_THREADS": "1"}
    before = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    argv = [sys.executable, "-m", "neox_core", "data", "prepare", str(source), "--out", str(out), *more]
    subprocess.run(argv, env=env, check=True, capture_output=True)
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before


def tokenizing(folder: Path) -> Path:
    source, out = folder / "texts", folder / "out"
    source.mkdir()
    mega = texts(source)
    prepare(source, out)
    files = (str(out / "vocab.json"), str(out / "merges.txt"))
    ours, theirs = [], []
    for _ in range(RUNS):
        given = ("--vocab-file", files[0], "--merge-file", files[1])
        ours.append(mega / prepare(source, folder / "again", *given, "--force"))
        theirs.append(mega / alone(PEER, str(source), *files)[0])
    append_row("data_cpu", f"{mega:.0f} MB of text to a dataset, whole command: neox", RATE, ours)
    append_row(
        "data_cpu", f"{mega:.0f} MB of text to ids, the loop alone: tokenizers", RATE, theirs
    )
    return out / "out"


def reading(prefix: Path) -> None:
    import numpy as np
    from neox_data_indexed.mmap import MmapSource

    from neox_core.build.dataset import Part, Samples
    from neox_core.build.order import build_order

    source = MmapSource(prefix)
    documents = np.arange(len(source.sizes), dtype=np.int32)
    samples = Samples(
        (Part("", source, build_order(source.sizes, documents, SEQ_LENGTH, 20_000, 1), 1),), None, 1, SEQ_LENGTH, 2**31
    )
    into, rates = np.empty(SEQ_LENGTH + 1, dtype=np.int64), []
    for _ in range(RUNS):
        began = time.perf_counter()
        for index in range(20_000):
            samples.read(index, into)
        rates.append(20_000 / (time.perf_counter() - began))
    append_row("data_cpu", f"samples of {SEQ_LENGTH} tokens, page cache warm", "samples/s", rates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", default="1e7")
    order(parser.parse_args().documents)
    with tempfile.TemporaryDirectory() as folder:
        reading(tokenizing(Path(folder)))


if __name__ == "__main__":
    main()

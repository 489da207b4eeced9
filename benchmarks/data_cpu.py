"""Data on one core: orders of samples, tokenizing and writing, memory, reading samples, what a run waits for them; and
tokenizing by two workers.

`python benchmarks/data_cpu.py [PART...]`: rows are appended to benchmarks/results.csv. Ours and a peer's run in
alternation. PART: order, blending, tokenizing, workers, memory, reading, waiting; all if none is named.
`--documents 1e8` is the size of the order, `--megabytes 100 2000` are the sizes of text whose memory is compared (5 MB
take a second).
"""

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from time import perf_counter as now

from results import append_row

RUNS, PAIRS = 3, 7
TEXT_BYTES, WORKERS_BYTES = 48 << 20, 12_000_000
SEQ_LENGTH = 2048
RATE = "MB/s of processor time"

ORDER = """
import ctypes, resource, sys, time
import numpy as np
from neox_causal_lm.order import build_order
count, how, library = int(float(sys.argv[1])), sys.argv[2], sys.argv[3]
sizes = np.random.default_rng(0).integers(1, 1000, count, dtype=np.int32)
documents, samples = np.arange(count, dtype=np.int32), int(sizes.sum(dtype=np.int64)) // 2048 - 1
walk = ctypes.CDLL(library).walk

def one_pass(sizes, documents, seq_length, samples, seed):  # as GPT-NeoX goes about it
    rng = np.random.RandomState(seed)
    total = int(np.sum(sizes[documents], dtype=np.int64))
    stream = np.mgrid[0:1, 0:len(documents)][1]
    stream[:] = documents
    stream = stream.reshape(-1).astype(np.int32)
    rng.shuffle(stream)
    starts = np.zeros(((total - 1) // seq_length + 1, 2), dtype=np.int64)
    walk(
        ctypes.c_void_p(sizes.ctypes.data), ctypes.c_void_p(stream.ctypes.data), ctypes.c_int64(len(starts) - 1),
        ctypes.c_int32(seq_length), ctypes.c_void_p(starts.ctypes.data),
    )
    shuffle = np.arange(len(starts) - 1, dtype=np.uint32)
    rng.shuffle(shuffle)
    return stream, starts, shuffle

before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
if how == "ours":
    order = build_order(sizes, documents, 2048, samples, 1234)
    arrays = order.documents, order.samples, order.shuffle
else:
    arrays = one_pass(sizes, documents, 2048, samples, 1234)
seconds, after = time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
held = sum(array.nbytes for array in arrays)
print(seconds, held / len(arrays[2]), (after - before) / 1024 - held / 2**20)
print(*(int(array.astype(np.uint64).sum() % 2**31) for array in arrays))
"""

WALK = """
#include <cstdint>
// One pass over all samples: each walks from document to document until it has its tokens.
extern "C" void walk(const int32_t* sizes, const int32_t* stream, int64_t samples, int32_t seq, int64_t* starts) {
    int64_t place = 0;
    int32_t offset = 0;
    starts[0] = starts[1] = 0;
    for (int64_t sample = 1; sample <= samples; ++sample) {
        for (int32_t wanted = seq + 1; wanted > 0;) {
            const int32_t left = sizes[stream[place]] - offset;
            wanted -= left;
            if (wanted <= 0) {
                offset += wanted + left - 1;
            } else {
                ++place;
                offset = 0;
            }
        }
        starts[2 * sample] = place;
        starts[2 * sample + 1] = offset;
    }
}
"""

PEER = """
import sys
from pathlib import Path
import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
files, vocab, merges, out = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
tokenizer = Tokenizer(models.BPE.from_file(vocab, merges))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
paths = sorted(files.iterdir())
with open(out, "wb") as written:
    for first in range(0, len(paths), 64):
        texts = [path.read_text() for path in paths[first : first + 64]]
        for encoding in tokenizer.encode_batch_fast(texts):
            written.write(np.array([*encoding.ids, 0], dtype=np.uint16).tobytes())
"""

WAITING = """
num-layers: 4
hidden-size: 128
num-attention-heads: 4
seq-length: 2048
max-position-embeddings: 2048
train_micro_batch_size_per_gpu: 1
train-iters: 12
save-interval: 12
log-interval: 4
num-workers: 2
tokenizer-type: GPT2BPETokenizer
eval-interval: 100
eval-iters: 0
optimizer: {type: Adam, params: {lr: 0.001}}
"""


def alone(code: str, *args: str) -> list[float]:
    """The numbers that a process on one core prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *args], env=one_core(), check=True, capture_output=True, text=True
    )
    return [float(number) for number in done.stdout.split()]


def one_core() -> dict[str, str]:
    return {**os.environ, "RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def order(documents: str, folder: Path) -> None:
    """The whole order, ours and with the one pass in C++ that GPT-NeoX makes; both give the same arrays."""
    (folder / "walk.cpp").write_text(WALK)
    library = str(folder / "walk.so")
    subprocess.run(["g++", "-O3", "-shared", "-fPIC", str(folder / "walk.cpp"), "-o", library], check=True)
    runs: dict[str, list[list[float]]] = {"ours": [], "one pass in C++": []}
    for _ in range(RUNS):
        for how, done in runs.items():
            done.append(alone(ORDER, documents, how, library))
    if runs["ours"][0][3:] != runs["one pass in C++"][0][3:]:
        raise SystemExit("the two do not agree")
    for how, done in runs.items():
        for unit, values in zip(("s", "bytes/sample", "MiB over the arrays"), zip(*done, strict=True), strict=False):
            append_row("data_cpu", f"order of {float(documents):.0e} documents: {how}", unit, list(values))


def blending() -> None:
    """The turns of 10^8 samples from a few datasets."""
    from neox_causal_lm.blend import build_blend, normalise

    build_blend([1.0], 1, compile_from=0)  # compiles
    for count in (2, 10):
        seconds = []
        for _ in range(RUNS):
            began = time.process_time()
            build_blend(normalise(range(1, count + 1)), 10**8)
            seconds.append(time.process_time() - began)
        append_row("data_cpu", f"turns of 1e+08 samples of {count} datasets", "s", seconds)


def texts(folder: Path) -> float:
    """Source files of the standard library as .txt; returns their MB."""
    held = 0
    for number, raw in enumerate(islice(cycle(sources()), 20_000)):
        (folder / f"{number:05}.txt").write_bytes(raw)
        held += len(raw)
        if held >= TEXT_BYTES:
            break
    return held / 1e6


def sources() -> list[bytes]:
    root = Path(sysconfig.get_path("stdlib"))
    found = sorted(path for path in root.rglob("*.py") if "site-packages" not in path.parts)
    return [path.read_bytes().decode("utf-8", errors="ignore").encode() for path in found]


def used(argv: Sequence[str]) -> tuple[float, float]:
    """(seconds of processor time, peak MiB) of a command: other work on the machine does not change them much."""
    process = subprocess.Popen(argv, env=one_core(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{argv[:5]} failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def prepare(source: Path, out: Path, more: Sequence[str]) -> tuple[float, float]:
    return used([sys.executable, "-m", "neox_core", "data", "prepare", str(source), "--out", str(out), *more])


def vocabulary(folder: Path) -> tuple[str, ...]:
    """Options with a vocabulary, which is learnt once."""
    out = folder / "vocabulary"
    if not out.exists():
        neox = [sys.executable, "-m", "neox_core", "data", "train-tokenizer", "stdlib", "--out", str(out)]
        subprocess.run(neox, check=True, capture_output=True)
    return "--vocab-file", str(out / "vocab.json"), "--merge-file", str(out / "merges.txt")


def tokenizing(folder: Path) -> None:
    """Whole processes from text to ids on disk, in both."""
    source, given = folder / "texts", vocabulary(folder)
    source.mkdir()
    mega = texts(source)
    ours, theirs = [], []
    for _ in range(RUNS):
        ours.append(mega / prepare(source, folder / "again", (*given, "--force"))[0])
        peer = [sys.executable, "-c", PEER, str(source), given[1], given[3], str(folder / "peer.bin")]
        theirs.append(mega / used(peer)[0])
    for who, values in (("neox data prepare", ours), ("a loop of tokenizers", theirs)):
        append_row("data_cpu", f"{mega:.0f} MB of text to ids on disk: {who}", RATE, values)


ONE, TWO, BOTH = "workers 1", "workers 2", "two commands of one worker at once"


def workers(folder: Path) -> None:
    """How much faster two workers are than one, of two times as fast; without the start of the command.

    Two commands at once, each with a text of that size, show how much of that the two cores of this machine allow.
    """
    given = (*vocabulary(folder), "--force")
    times: dict[int, dict[str, list[float]]] = {size: {ONE: [], TWO: [], BOTH: []} for size in (0, WORKERS_BYTES)}
    for size, found in times.items():
        source = folder / f"of-{size}.jsonl"
        with source.open("wb") as file:
            for raw in cycle(sources()):
                file.write(json.dumps({"text": raw.decode()}).encode() + b"\n")
                if file.tell() >= size:
                    break
        for _ in range(PAIRS):
            for how, seconds in found.items():
                run, began = partial(prepare, source, more=(*given, "--workers", "2" if how == TWO else "1")), now()
                with ThreadPoolExecutor(2) as pool:
                    list(pool.map(run, [folder / "again", folder / "beside"][: 2 if how == BOTH else 1]))
                seconds.append(now() - began)
    start = {how: median(seconds) for how, seconds in times[0].items()}
    alone = [seconds - start[ONE] for seconds in times[WORKERS_BYTES][ONE]]
    for how, seconds in times[WORKERS_BYTES].items():
        append_row("data_cpu", f"preparing {WORKERS_BYTES / 1e6:.0f} MB, {how}", "s", seconds)
    for how, work in ((TWO, 1), (BOTH, 2)):
        pairs = zip(alone, times[WORKERS_BYTES][how], strict=True)
        shares = [100 * work * one / (two - start[how]) / 2 for one, two in pairs]
        append_row("data_cpu", f"{how} next to workers 1, of twice as fast, without the start", "%", shares)


def memory(folder: Path, megabytes: Sequence[int]) -> None:
    given = vocabulary(folder)
    for size in megabytes:
        source = folder / f"{size}.jsonl"
        with source.open("wb") as file:
            for raw in cycle(sources()):
                file.write(json.dumps({"text": raw.decode()}).encode() + b"\n")
                if file.tell() >= size * 1e6:
                    break
        runs = [prepare(source, folder / f"out{size}", (*given, "--force")) for _ in range(2)]
        source.unlink()
        append_row("data_cpu", f"preparing {size} MB: peak memory", "MiB", [peak for _, peak in runs])
        append_row("data_cpu", f"preparing {size} MB", RATE, [size / seconds for seconds, _ in runs])


def reading(folder: Path) -> None:
    import numpy as np
    from neox_causal_lm.order import build_order
    from neox_causal_lm.samples import Part, Samples
    from neox_data_indexed.mmap import MmapBackend
    from neox_data_indexed.settings import IndexedSettings

    prefix, backend = folder / "tokens", MmapBackend(IndexedSettings())
    writer, rng = backend.create(prefix, 50_000), np.random.default_rng(0)
    for _ in range(100_000):
        writer.add_document(rng.integers(0, 50_000, rng.integers(1, 4000)))
    writer.close()
    for cache in ("warm", "cold"):
        rates, count = [], 20_000 if cache == "warm" else 4000
        for _ in range(RUNS):
            if cache == "cold":
                for file in backend.files(prefix):
                    with file.open("rb") as opened:
                        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            source = backend.open(prefix)
            order = build_order(source.sizes, np.arange(len(source.sizes), dtype=np.int32), SEQ_LENGTH, count, 1)
            samples = Samples((Part("", source, order, 1),), None, "train", 1, SEQ_LENGTH, 2**31)
            into = np.empty(SEQ_LENGTH + 1, dtype=np.int64)
            began = time.perf_counter()
            for index in range(count):
                samples.read(index, into)
            rates.append(count / (time.perf_counter() - began))
            del source, order, samples  # or its maps keep the pages
        append_row("data_cpu", f"samples of {SEQ_LENGTH} tokens, page cache {cache}", "samples/s", rates)


def waiting(folder: Path) -> None:
    """How much of a step the training loop waits for its batches, with `num-workers: 2`."""
    neox = [sys.executable, "-m", "neox_core"]
    data = folder / "data"
    subprocess.run([*neox, "data", "prepare", "stdlib", "--out", str(data)], check=True, capture_output=True)
    files = {"data-path": data / "stdlib", "vocab-file": data / "vocab.json", "merge-file": data / "merges.txt"}
    config = folder / "waiting.yml"
    config.write_text(WAITING + "".join(f"{key}: {value}\n" for key, value in files.items()))
    shares = []
    for run in range(RUNS):
        where = folder / f"run{run}"
        argv = [*neox, "train", str(config), "--set", f"save={where}"]
        subprocess.run(argv, check=True, capture_output=True, env=one_core())
        (metrics,) = where.rglob("metrics.jsonl")
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        logged = [line for line in lines if "data_wait_s" in line][1:]  # without the first steps, when readers start
        shares.append(100 * sum(line["data_wait_s"] for line in logged) / sum(line["step_s"] for line in logged))
    append_row("data_cpu", "a step waits for data, num-workers 2", "% of the step", shares)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parts = ("order", "blending", "tokenizing", "workers", "memory", "reading", "waiting")
    parser.add_argument("parts", nargs="*", choices=[*parts, []])
    parser.add_argument("--documents", default="1e7")
    parser.add_argument("--megabytes", type=int, nargs="+", default=[100, 400])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in given.parts or parts:
            match part:
                case "order":
                    order(given.documents, folder)
                case "blending":
                    blending()
                case "memory":
                    memory(folder, given.megabytes)
                case _:
                    {"tokenizing": tokenizing, "workers": workers, "reading": reading, "waiting": waiting}[part](folder)


if __name__ == "__main__":
    main()

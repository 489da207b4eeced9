"""Configs that nobody would write, through load, structure and rules: a plan or a report, never a traceback.

    python tests/fuzz/fuzz_config.py --inputs 100000 --seed 1      # mutants of the shipped configs
    python tests/fuzz/fuzz_config.py --inputs 100000 --coverage    # guided by coverage: pip install atheris

The first input that ends in anything but a NeoxError is written to crash.bin beside its traceback, and exits 1.
"""

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ENDINGS = (".yml", ".json", ".toml")
PIECES = [bytes([letter]) for letter in b"[]{}:,#&*!|>%@-?\"'\n\t \0\xff=."] + [
    b"true", b"null", b".inf", b"-1", b"0", b"1e400", b"9" * 400, b"!!python/name:os.system", b"!!binary ", b"<<: ",
    b"--- ", b"[[1]]", b"{a: {b: 1}}", b"&a ", b"*a", b"\r\n", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"[a.b]\n", b"'''",
]  # fmt: skip
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 2**31, 2**63, 10**400, -(10**30), 0.0, -0.5, 0.5, 1.5, 5e8, 1e-5, float("inf"),
    float("nan"), "", " ", "true", "false", "1", "1e3", "adam", "Adam", "rotary", "auto", "cpu", "\ud800", "\0", "-",
    ".", "..", "/", "a" * 300, [], [None], [1, 2], [[1]], ["a"], [0.9, 0.95], [True], {}, {"enabled": True}, {"a": 1},
    {"": 1}, {"stage": 3}, {"type": "Adam"}, {"enabled": True, "dtype": "x"}, {"params": {"lr": -1}},
    {"a-b": {"c_d": []}},
)  # fmt: skip

SMALL: dict[str, Any] = {
    "num-layers": 2,
    "hidden-size": 64,
    "num-attention-heads": 4,
    "max-position-embeddings": 32,
    "seq-length": 32,
    "data-path": "data/none",
    "padded-vocab-size": 256,
    "train-iters": 100,
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
}


class Mutants:
    """Inputs made of the given configs: their text with bytes moved about, or their keys and values exchanged."""

    def __init__(self, texts: list[bytes], mappings: list[dict[str, Any]], keys: list[str], seed: int) -> None:
        self.texts = texts
        self.mappings = mappings
        self.keys = keys
        self.random = random.Random(seed)

    def next(self) -> tuple[bytes, str, list[str]]:
        """(content, ending, --set values)."""
        if self.random.random() < 0.25:
            return self._bytes(), self.random.choice((*ENDINGS, ".yml")), []
        values = self._structure()
        sets = [self._set() for _ in range(self.random.choice((0, 0, 0, 1, 2)))]
        return json.dumps(values).encode(), self.random.choice((".json",) * 9 + (".yml",)), sets

    def _bytes(self) -> bytes:
        text = self.random.choice(self.texts)
        for _ in range(self.random.randint(1, 6)):
            at, cut = self.random.randrange(len(text) + 1), self.random.choice((0, 0, 1, 3, 20))
            piece = self.random.choice(PIECES) if self.random.random() < 0.8 else self.random.randbytes(3)
            text = text[:at] + piece + text[at + cut :]
        return text

    def _structure(self) -> dict[str, Any]:
        values: dict[str, Any] = json.loads(json.dumps(self.random.choice(self.mappings)))
        for _ in range(self.random.choice((1, 1, 1, 1, 2, 3, 5))):
            block = self._block(values)
            action, key = self.random.random(), self.random.choice([*block, *self.keys])
            if action < 0.2:
                block.pop(key, None)
            elif action < 0.35:
                block[self._typo(key)] = block.pop(key, self._value())
            else:
                block[key] = self._value()
        return values

    def _block(self, values: dict[str, Any]) -> dict[str, Any]:
        inner = [value for value in values.values() if isinstance(value, dict)]
        return self._block(self.random.choice(inner)) if inner and self.random.random() < 0.4 else values

    def _value(self) -> Any:
        if self.random.random() < 0.3:
            return deepcopy(self.random.choice([value for each in self.mappings for value in each.values()]))
        return deepcopy(self.random.choice(ODD))

    def _typo(self, key: str) -> str:
        at = self.random.randrange(len(key) + 1)
        return key[:at] + self.random.choice(("", "x", "-", "_", ".", " ", "é")) + key[at + 1 :]

    def _set(self) -> str:
        value = json.dumps(self._value())
        return self.random.choice((f"{self.random.choice(self.keys)}={value}", value, f"optimizer.params.lr={value}"))


def prepare(folder: Path) -> Callable[[bytes, str, list[str]], str]:
    """A function that takes an input through `prepare_run` and returns how that ended."""
    from neox_core.errors import NeoxError
    from neox_core.hooks.loader import load_plugins
    from neox_core.plan.cluster import Machine
    from neox_core.plan.resolve import prepare_run

    catalog, machines = load_plugins(), (Machine(0, 4), Machine(1, 4), Machine(8, 16))
    files = {ending: str(folder / f"c{ending}") for ending in ENDINGS}

    def one(content: bytes, ending: str, sets: list[str]) -> str:
        Path(files[ending]).write_bytes(content)
        try:
            prepare_run([Path(files[ending])], sets, catalog=catalog, machine=machines[len(content) % 3], start=False)
        except NeoxError as error:
            str(error)
            return type(error).__name__
        return "plan"

    return one


def material() -> tuple[list[bytes], list[dict[str, Any]], list[str]]:
    """(texts, mappings, keys) of the shipped configs, of GPT-NeoX's in tests/data, and of the documents."""
    from neox_core.config.read.load import load
    from neox_core.config.schema.owners import find_owners
    from neox_core.hooks.loader import load_plugins

    files = sorted([*(ROOT / "configs").glob("**/*.yml"), *(ROOT / "tests/data/gpt-neox").glob("*.yml")])
    mappings = [dict(load([file]).values) for file in files]
    mappings += [SMALL] * len(mappings)  # it has no error to begin with, so its mutants come further
    keys = {key for each in mappings for key in each} | set(find_owners(load_plugins().registry).keys())
    return [file.read_bytes() for file in files], mappings, sorted(keys)


def run(inputs: int, seed: int, folder: Path) -> Counter[str]:
    """How the inputs ended, by kind. Raises what a broken input raised, after writing crash.bin."""
    mutants, one, ended = Mutants(*material(), seed), prepare(folder), Counter[str]()
    for _ in range(inputs):
        content, ending, sets = mutants.next()
        try:
            ended[one(content, ending, sets)] += 1
        except BaseException:
            (folder / "crash.bin").write_bytes(content)
            sys.stderr.write(f"{folder}/crash.bin as c{ending}, with --set {sets}\n")
            raise
    return ended


def guided(inputs: int, seed: int, folder: Path) -> None:
    """The same check, driven by atheris; it ends the process."""
    import atheris

    with atheris.instrument_imports(include=["neox_core"]):
        one = prepare(folder)
    corpus = folder / "corpus"
    corpus.mkdir()
    for index, text in enumerate(material()[0]):
        (corpus / str(index)).write_bytes(b"\0" + text)

    def test_one(data: bytes) -> None:
        one(data[1:], ENDINGS[data[0] % 3] if data else ".yml", [])

    atheris.Setup([sys.argv[0], f"-runs={inputs}", f"-seed={seed}", "-max_len=4096", str(corpus)], test_one)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--coverage", action="store_true", help="let atheris choose the inputs")
    options = parser.parse_args()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    if options.coverage:
        guided(options.inputs, options.seed, folder)
    started = time.monotonic()
    try:
        ended = run(options.inputs, options.seed, folder)
    except Exception:  # noqa: BLE001  whatever it is, it is what was looked for
        traceback.print_exc()
        sys.exit(1)
    counts = ", ".join(f"{count:,} {kind}" for kind, count in ended.most_common())
    took = time.monotonic() - started
    sys.stdout.write(f"{ended.total():,} inputs, seed {options.seed}, no traceback: {counts}; {took:.0f} s\n")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()

"""What GPT-NeoX accepts in silence and this refuses, each with its key and its place; and what must stay accepted."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neox_core.config.problem import Problem
from neox_core.config.read.load import MAX_BYTES
from neox_core.config.report import ProblemsError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run

BASE = """\
num-layers: 2
hidden-size: 48
num-attention-heads: 12
max-position-embeddings: 32
seq-length: 32
padded-vocab-size: 256
train-iters: 100
train_micro_batch_size_per_gpu: 2
num-gpus: 2
optimizer: {type: Adam, params: {lr: 1.0e-3}}
"""


@pytest.fixture(scope="module")
def installed() -> Any:
    return load_plugins()


@pytest.fixture
def problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: Any, dataset: str) -> Any:
    """What is said of BASE, some of its lines exchanged or left out, with more lines below them."""
    monkeypatch.chdir(tmp_path)

    def _problems(more: str, *, without: tuple[str, ...] = (), gpus: int = 0) -> list[Problem]:
        base = [line for line in BASE.splitlines() if not line.startswith(without or "\0")]
        if "data-path" not in more:
            base.append(f"data-path: {dataset}")
        Path("c.yml").write_text("\n".join(base) + "\n")
        Path("d.yml").write_text(more or "plugins: {}\n")
        files = [Path("c.yml"), Path("d.yml")]
        try:
            return list(prepare_run(files, catalog=installed, machine=Machine(gpus, 4)).notes)
        except ProblemsError as error:
            return list(error.problems)

    return _problems


def errors(found: list[Problem]) -> list[Problem]:
    return [each for each in found if each.severity == "error"]


# name: (lines of d.yml, keys of BASE that are left out, the key that is named, where, a part of what is said)
REFUSED: dict[str, tuple[str, tuple[str, ...], str, str, str]] = {
    "one key, two spellings, two files": ("num_layers: 48", (), "num_layers", "d.yml:1:1", "first at c.yml:1:1"),
    "a key twice": ("seed: 1\nseed: 1", (), "seed", "d.yml:2:1", "is written twice; first at d.yml:1:1"),
    "a key of no optimizer": (
        "optimizer: {params: {learning_rate: 1}}", (), "optimizer.params.learning_rate", "d.yml:1:22", "unknown key",
    ),
    "no optimizer": ("", ("optimizer",), "optimizer", "", "is required"),
    "a typo in ZeRO": (
        "zero_optimization:\n  reduce_bucket_sise: 5", (), "zero_optimization.reduce_bucket_sise", "d.yml:2:3",
        "unknown key",
    ),
    "engine arguments that contradict": (
        "deepspeed_extra_args: {gradient_clipping: 99}\ngradient_clipping: 1.0", (), "deepspeed_extra_args",
        "d.yml:1:", "",
    ),
    "a warm-up in steps": ("warmup: 2000", (), "warmup", "d.yml:1:1", "2000"),
    "a negative share": ("split: -1,2", (), "split", "d.yml:1:1", ""),
    "no checkpoint kept": ("keep-last-n-checkpoints: 0", (), "keep-last-n-checkpoints", "d.yml:1:1", "greater than 0"),
    "no such data": ("data-path: no/where", (), "data-path", "d.yml:1:1", "there is no dataset no/where"),
    "a batch that does not fit": ("train_batch_size: 7", (), "train_batch_size", "d.yml:1:1", "7"),
    "ZeRO 2 under a pipeline": (
        "zero_optimization: {stage: 2}\npipe-parallel-size: 2", (), "zero_optimization.stage|pipe-parallel-size",
        "d.yml:", "",
    ),
    "heads that do not divide": (
        "hidden-size: 100", ("hidden-size",), "hidden-size", "d.yml:1:1", "100 cannot be divided",
    ),
    "two precisions": (
        "fp16: {enabled: true}\nbf16: {enabled: true}", (), "fp16|bf16", "d.yml:", "enabled together with",
    ),
    "a sequence too long": ("seq-length: 64", ("seq-length",), "seq-length", "d.yml:1:1", "max-position-embeddings"),
    "a quoted boolean": ('gpt-j-residual: "false"', (), "gpt-j-residual", "d.yml:1:1", "must be true or false"),
    "a fractional count": ("eval-iters: 3.9", (), "eval-iters", "d.yml:1:1", "must be a whole number, not 3.9"),
    "infinity": ("min-lr: .inf", (), "min-lr", "d.yml:1:1", "must be a finite number"),
    "a seed of more than 32 bits": ("seed: 4294967296", (), "seed", "d.yml:1:1", "must be from 1 to 4294967295"),
    "a key inside sparse_attention": ("sparse_attention: {blok: 16}", (), "sparse_attention", "d.yml:1:", ""),
    "a key inside activation_checkpointing": (
        "activation_checkpointing: {partition_activationz: true}", (), "activation_checkpointing", "d.yml:1:", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_its_key_and_its_place(problems: Any, name: str) -> None:
    more, without, key, where, said = REFUSED[name]
    found = errors(problems(more, without=without))
    assert [
        each
        for each in found
        if each.key.startswith(tuple(key.split("|"))) and each.where.startswith(where) and said in each.message
    ], found


def test_the_base_itself_is_accepted(problems: Any) -> None:
    assert errors(problems("")) == []


def test_an_optimizer_that_does_not_suit_fp16_is_said(problems: Any) -> None:
    """SM3 in half precision: a warning where SM3 is installed, an error that names the key where it is not."""
    more = "optimizer: {type: SM3, params: {lr: 0.1}}\nfp16: {enabled: true}\nzero_allow_untested_optimizer: true"
    found = problems(more, without=("optimizer",), gpus=2)
    assert [each for each in found if "SM3" in each.message or each.key.startswith("optimizer")], found


ACCEPTED = {
    "a number without a dot": "min-lr: 1e-5",
    "a count in powers of ten": "zero_optimization: {stage: 1, reduce_bucket_size: 5e8}",
    "a capital": "gpt-j-residual: True",
    "commas and braces": '{"seed": 2, "fp16": {"enabled": False, }, }',
    "null": "intermediate-size: null\nseed: ~\nnorm:",
    "shares": "split: 10,10,10",
    "the same twice in two files": "num_layers: 2",
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(problems: Any, name: str) -> None:
    assert errors(problems(ACCEPTED[name])) == []


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty.yml": (b"", "is empty"),
    "list.yml": (b"- a\n", "must hold keys with values, not a list"),
    "list.json": (b"[]", "must hold an object"),
    "line.yml": (b"save: " + b"x" * 10_000_000, "is larger than 1 MiB"),
    "nul.yml": (b"seed: 1\nsave: a\0b\n", "nul.yml:2: error: holds a NUL byte"),
    "utf8.yml": (b"seed: 1\nsave: ab\xff\n", "utf8.yml:2:9: error: is not UTF-8: byte 0xff"),
    "utf8.toml": (b'save = "\xc3"\n', "utf8.toml:1:9: error: is not UTF-8"),
    "bomb.yml": (
        b"a: &a [x, x, x, x, x, x, x, x, x]\n"
        + b"".join(b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 9)) for i in range(9)),
        "expands to too many values",
    ),
    "tag.yml": (b"save: !!python/object/apply:os.system [id]\n", "tag.yml:1:7: error: the tag"),
    "deep.yml": (b"[" * 10_000, "is nested too deeply"),
    "deep-blocks.yml": (b"{a: " * 10_000, "is nested too deeply"),
    "deep.json": (b'{"a":' * 10_000, "is nested too deeply"),
    "deep-list.json": (b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}", "is nested too deeply"),
    "deep.toml": (b"a = " + b"[" * 10_000, "is nested too deeply"),
    "number.yml": (b"seed: " + b"9" * 900_000, "cannot read the number"),
    "number.json": (b'{"seed": ' + b"9" * 900_000 + b"}", "a number that is too long"),
    "number.toml": (b"seed = " + b"9" * 900_000, "a number that is too long"),
    "many.yml": (b"".join(b"k%d: 1\n" % i for i in range(60_000)), "holds too many values"),
    "many.json": (b"{" + b",".join(b'"k%d": 1' % i for i in range(60_000)) + b"}", "holds too many values"),
    "many.toml": (b"".join(b"k%d = 1\n" % i for i in range(60_000)), "holds too many values"),
    "unknown.yml": (b"".join(b"k%d: 1\n" % i for i in range(3_000)), "more"),
    "twice.yml": (b"".join(b"seed: %d\n" % i for i in range(3_000)), "is written twice"),
    "tabs.yml": (b"optimizer:\n\ttype: Adam\n", "tabs.yml:2:1: error: is not valid YAML"),
    "mark.yml": (b"\xef\xbb\xbfseed: x\r\n", "mark.yml:1:1: error: seed: must be a whole number"),
    "twice.json": (b'{"seed": 1,\n"seed": 1}', "twice.json:2:1: error: seed: is written twice"),
    "spellings.toml": (b"train-iters = 1\ntrain_iters = 2\n", "spellings.toml:2:1: error: train_iters: is given twice"),
    "half-key.json": (b'{"a\\ud800": 1}', "a\\ud800: holds an incomplete character (a lone surrogate)"),
    "half-value.yml": (b'save: "\\udfff"', "half-value.yml:1:1: error: save: holds an incomplete character"),
    "half-in-a-list.json": (b'{"plugins": {"require": ["\\ud800"]}}', "plugins.require: holds an incomplete character"),
    "half-of-anything.json": (b'{"deepspeed_extra_args": {"a": {"b": ["\\ud800"]}}}', "holds an incomplete character"),
    "long-value.yml": (b"norm: " + b"x" * 70_000, "more characters"),
    "long-key.yml": (b"x" * 900 + b": 1", "unknown key"),
    "long-number.yml": (b"seed: " + b"9" * 4_000, "whole number"),
    "folder.yml": (b"", "is a directory"),
    "pipe.yml": (b"", "is not a regular file"),
}

SCRIPT = """
import resource, sys
from pathlib import Path
from neox_core.errors import ConfigError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run
catalog = load_plugins()
resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20))
for file in sys.argv[1:]:
    try:
        prepare_run([Path(file)], catalog=catalog, machine=Machine(0, 4))
    except ConfigError as error:
        Path(file + ".said").write_text(str(error))
"""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of hostile files with what was said of each, by one process with 600 MiB."""
    import os

    folder = tmp_path_factory.mktemp("hostile")
    for name, (content, _) in HOSTILE.items():
        (folder / name).write_bytes(content)
    for name, make in (("folder.yml", os.mkdir), ("pipe.yml", os.mkfifo)):
        (folder / name).unlink()
        make(folder / name)
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, *HOSTILE], cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    return folder


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_one_clear_error_and_costs_little(hostile: Path, name: str) -> None:
    said = hostile / f"{name}.said"
    assert said.exists(), "accepted"
    assert HOSTILE[name][1] in said.read_text()
    assert len(said.read_text()) < 64_000


def test_a_file_of_ten_megabytes_is_not_read_to_its_end() -> None:
    assert MAX_BYTES < 10_000_000

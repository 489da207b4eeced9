"""Whatever is done to a config, the answer is a plan or a report: never a traceback."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from neox_core.errors import NeoxError
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run

FILES = sorted((Path(__file__).parents[2] / "data/gpt-neox").glob("*.yml"))
TEXTS = [file.read_bytes() for file in FILES]
PIECES = [bytes([letter]) for letter in b"[]{}:,#&*!|>%@-?\"'\n\t\0\xff"] + [
    b"true",
    b"null",
    b".inf",
    b"-1",
    b"0",
    b"1e400",
    b"9" * 400,
    b"!!python/name:os.system",
    b"<<",
    b"--- ",
    b"[[1]]",
    b"{a: {b: 1}}",
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = [
    "num_layers",
    "hidden-size",
    "num_attention_heads",
    "seq_length",
    "max_position_embeddings",
    "norm",
    "pos_emb",
    "activation",
    "optimizer",
    "optimizer.type",
    "optimizer.params",
    "optimizer.params.lr",
    "optimizer.params.betas",
    "zero_optimization",
    "zero_optimization.stage",
    "fp16",
    "bf16",
    "torch_autocast",
    "split",
    "data_path",
    "data-impl",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "train_iters",
    "warmup",
    "min_lr",
    "lr",
    "adam-beta1",
    "geglu",
    "rms-norm",
    "loss-scale",
    "monitors",
    "plugins",
    "plugins.require",
    "num_gpus",
    "device",
    "save",
    "save_interval",
    "master_port",
    "launcher",
    "tokenizer_type",
    "vocab_file",
    "layernorm_epsilon",
    "weight_decay",
    "gradient_clipping",
    "seed",
    "unheard-of",
]

calm = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def prepare(folder: Path, content: bytes, sets: list[str], catalog: Any, ending: str = ".yml") -> None:
    file = folder / f"c{ending}"
    file.write_bytes(content)
    with contextlib.suppress(NeoxError):
        prepare_run([file], sets, catalog=catalog, machine=Machine(1, 4))


@calm
@given(
    text=st.sampled_from(TEXTS),
    edits=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 40), st.sampled_from(PIECES)), max_size=6),
    ending=st.sampled_from([".yml", ".yml", ".json", ".toml"]),
)
def test_edited_files(
    tmp_path: Path, catalog: Any, text: bytes, edits: list[tuple[int, int, bytes]], ending: str
) -> None:
    for start, cut, piece in edits:
        at = start % len(text)
        text = text[:at] + piece + text[at + cut :]
    prepare(tmp_path, text, [], catalog, ending)


@calm
@given(values=st.lists(st.tuples(st.sampled_from(KEYS), VALUES), min_size=1, max_size=5))
@example(values=[("optimizer.params.betas", [1]), ("adam-beta1", 0.5)])
@example(values=[("monitors", [None])])
def test_any_value_for_any_key(tmp_path: Path, catalog: Any, text: str, values: list[tuple[str, Any]]) -> None:
    prepare(tmp_path, text.encode(), [f"{key}={as_yaml(value)}" for key, value in values], catalog)


@calm
@given(content=st.binary(max_size=200), ending=st.sampled_from([".yml", ".json", ".toml"]))
def test_any_bytes(tmp_path: Path, catalog: Any, content: bytes, ending: str) -> None:
    prepare(tmp_path, content, [], catalog, ending)


def as_yaml(value: Any) -> str:
    """A value as flow YAML, without a library that would refuse what is odd."""
    write: Callable[[Any], str] = as_yaml
    if isinstance(value, dict):
        return "{" + ", ".join(f"{write(key)}: {write(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(write, value)) + "]"
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(letter):08X}" for letter in value) + '"'
    names = {None: "null", True: "true", False: "false"}
    return (
        names[value]
        if value is None or isinstance(value, bool)
        else str(value).replace("inf", ".inf").replace("nan", ".nan")
    )

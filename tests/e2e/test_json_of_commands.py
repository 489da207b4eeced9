"""`--json` of the commands whose result another program may want, which are all but those in WRITES."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from neox_author.testing import build, load_only

from neox_core.cli.main import neox

WRITES = {  # what they are asked for is a file, a run, or a text
    *("completion", "train", "elastic", "difficulty"),
    *("config docs", "config migrate", "config schema", "plugins new"),
    *("checkpoint export-hf", "checkpoint import-hf", "checkpoint average", "checkpoint export-peft"),
    *("checkpoint import", "checkpoint import-neox"),
    *("data index", "data merge", "data prepare", "data train-tokenizer"),
    "retrieval index",
}


def answer(folder: Path, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "neox_core", *arguments, "--json"],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def commands(command: click.Command, context: click.Context, name: str = "") -> dict[str, click.Command]:
    if not isinstance(command, click.Group):
        return {name: command}
    found = {}
    for each in command.list_commands(context):
        inner = command.get_command(context, each)
        assert inner is not None
        found |= commands(inner, click.Context(inner, context, info_name=each), f"{name} {each}".lstrip())
    return found


def test_every_command_that_answers_has_it() -> None:
    found = commands(neox, click.Context(neox, info_name="neox"))
    without = {name for name, command in found.items() if not any("--json" in each.opts for each in command.params)}
    assert without == WRITES


@pytest.fixture
def data(tmp_path: Path) -> Path:
    entry = load_only("neox-data-indexed").find("data backend", "mmap")
    writer = entry.load()(build(entry)).create(tmp_path / "data", 64)
    for document in ([1, 2, 3], [], [40]):
        writer.add_document(document)
    writer.close()
    return tmp_path


def test_datasets(data: Path) -> None:
    inspected = answer(data, "data", "inspect", "data", "--document", "2")
    assert (inspected["documents"], inspected["tokens"]) == (3, 4)
    assert inspected["document"] == {"number": 2, "tokens": 1, "first_ids": [40], "text": None}
    assert answer(data, "data", "verify", "data", "--vocab-size", "64") == {
        "prefix": "data",
        "documents": 3,
        "tokens": 4,
        "highest_id": 40,
        "empty_documents": 1,
        "vocab_size": 64,
        "checksums": [],
    }


def test_checkpoints_kernels_and_plugins(tmp_path: Path) -> None:
    (tmp_path / "zero_pp_rank").mkdir()
    nothing = answer(tmp_path, "checkpoint", "inspect", "zero_pp_rank")
    assert (nothing["kinds"], nothing["checkpoint"], nothing["step"]) == ([], None, None)
    kernels = answer(tmp_path, "kernels", "list", "--device", "cpu", "--dtype", "fp32")
    assert {"rms_norm", "cross_entropy"} <= {each["op"] for each in kernels["ops"]}
    assert all(each["choice"] and each["owners"] for each in kernels["ops"])
    (adam,) = answer(tmp_path, "plugins", "info", "Adam")
    assert (adam["is"], adam["plugin"], adam["missing"]) == ("optimizer", "neox-adam", [])
    assert {"name": "weight_decay", "type": "number", "default": "0.01"}.items() <= adam["settings"][3].items()
    (package,) = answer(tmp_path, "plugins", "info", "neox-adam")
    assert {"kind": "optimizer", "name": "Adam"} in package["offers"]
    plugins = answer(tmp_path, "plugins", "check")
    assert plugins["faults"] == 0
    assert plugins["plugins"] > 40

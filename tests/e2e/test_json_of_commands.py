"""What commands print with `--json`; tests/contract/test_json.py lists those without."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from neox_author.testing import build, load_only


def answer(folder: Path, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "neox_core", *arguments, "--json"],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


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

"""Steps on a GPU without numbers: no op mixes devices, and between two looks nothing waits for the device.

One process runs all cases, since a torch that was built without CUDA has to be given a device before it is imported.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
TORCH = Path(torch.__file__).parent
READ, COPY = "the host reads a number", "a copy from the host that is not from page-locked memory, or waited for"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The faults of each case."""
    if torch.version.cuda is not None or torch.version.hip is not None:
        pytest.skip("this torch has a device of its own")
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    folder = tmp_path_factory.mktemp("gpu")
    library = folder / "pretended_gpu.so"
    flags = ["-shared", "-fPIC", "-std=c++20", f"-I{TORCH / 'include'}", f"-L{TORCH / 'lib'}"]
    linked = ["-lc10", "-ltorch_cpu", f"-Wl,-rpath,{TORCH / 'lib'}"]
    subprocess.run([compiler, *flags, str(HERE / "pretended_gpu.cpp"), "-o", str(library), *linked], check=True)
    argv = [sys.executable, str(HERE / "gpu_cases.py"), str(library), str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    cases: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return cases


def test_what_is_planted_is_seen(found: dict[str, list[str]]) -> None:
    assert {name.removeprefix("planted: "): faults for name, faults in found.items() if name.startswith("planted")} == {
        "a number": [READ],
        "a branch": [READ],
        "to the host": ["a copy to the host"],
        "a list": [COPY],
        "from the host": [COPY],
        "a choice": ["index by a mask has a size that the host must know"],
        "a mask of the host": ["masked_fill mixes devices"],
    }


CASES = [
    "documents and a bias",
    "dropout, recomputed, some tokens",
    "blocks and a trained bias",
    "1-bit Adam",
    "two ranks share layers, documents and a bias",
    "two ranks share layers and positions, dropout, recomputed",
    "a run on documents",
    "a run with dropout, recomputed",
    "a run on two ranks, each with a model",
    "a run on four ranks, two sharing layers",
    "a run of the plain engine",
    "a run of the plain engine on two ranks",
    "a run at ZeRO stage 1",
    "a run at ZeRO stage 2",
    "a run at ZeRO stage 3",
    "a run of the first of two stages",
    "a run in fp16",
]


@pytest.mark.parametrize("case", CASES)
def test_a_step_mixes_no_devices_and_waits_for_nothing(case: str, found: dict[str, list[str]]) -> None:
    assert found[case] == []

"""Compiling kernels ahead of time, for GPUs that need not be there, and what they take of them.

`python -m neox_triton.ahead` compiles all of them and writes resources.csv.
"""

from __future__ import annotations

import csv
import hashlib
import inspect
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from attrs import asdict, fields, frozen
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from neox_core.hooks.component import load_path
from neox_triton.launch import Launch, recording
from neox_triton.plugin import KERNELS, target_of

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
TABLE = Path(__file__).parent / "resources.csv"
_TYPES = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
}


@frozen
class Resources:
    """What one kernel takes. registers: of a thread. spills: bytes of a thread on NVIDIA, registers on AMD.

    shared: bytes of a program. source: digest of the kernel and of how it was started.
    """

    op: str
    kernel: str
    target: str
    dtype: str
    warps: int
    registers: int
    spills: int
    shared: int
    source: str


def launches_of(op: str, dtype: torch.dtype = torch.bfloat16) -> list[Launch]:
    """Every different start of a kernel in the op's large examples, forward and backward; nothing is computed."""
    kernel = load_path(target_of(op))
    with recording() as launches:
        for arguments in kernel.examples(dtype, torch.device("meta"), large=True):
            returned = kernel(*arguments)
            results = [returned] if isinstance(returned, Tensor) else list(returned)
            inputs = [each for each in arguments if isinstance(each, Tensor) and each.requires_grad]
            if inputs:
                torch.autograd.grad(results, inputs, [torch.empty_like(each) for each in results])
    different = {_key(each): each for each in launches}
    return list(different.values())


def compiled(op: str, launch: Launch, target: str) -> Resources:
    """One kernel compiled for one target, by the compilers that Triton ships."""
    source = ASTSource(launch.fn, *_specialised(launch))
    options = {"num_warps": launch.warps, "enable_fp_fusion": True}
    binary = triton.compile(source, target=TARGETS[target], options=options)
    registers, spills = _nvidia(binary.asm["cubin"]) if "cubin" in binary.asm else _amd(binary.asm["amdgcn"])
    name = launch.fn.fn.__name__.lstrip("_")
    variant = "".join(f" {key}={value}" for key, value in launch.constants.items())
    return Resources(
        op, name + variant, target, "bf16", launch.warps, registers, spills, binary.metadata.shared, digest(launch)
    )


def digest(launch: Launch) -> str:
    """Of what decides the machine code, but for the version of Triton."""
    module = inspect.getsource(inspect.getmodule(launch.fn.fn))  # type: ignore[arg-type]
    text = repr((module, _specialised(launch), launch.warps))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_table() -> list[Resources]:
    with TABLE.open(newline="", encoding="utf-8") as file:
        return [_row(line) for line in csv.DictReader(file)]


def _row(line: dict[str, str]) -> Resources:
    numbers = {"warps", "registers", "spills", "shared"}
    return Resources(**{key: int(value) if key in numbers else value for key, value in line.items()})  # type: ignore[arg-type]


def _specialised(launch: Launch) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int], list[list[Any]]]]:
    """(signature, constants, attributes), as Triton makes them of the arguments of a start."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = dict(launch.constants)
    attributes: dict[tuple[int], list[list[Any]]] = {}
    plain = {each.name for each in launch.fn.params if each.do_not_specialize}
    for index, (name, value) in enumerate(zip(launch.fn.arg_names, launch.arguments, strict=False)):
        if isinstance(value, Tensor):
            signature[name] = _TYPES[value.dtype]
            attributes[(index,)] = [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[name] = "fp32"
        elif value == 1 and name not in plain:
            signature[name], constants[name] = "constexpr", 1
        else:
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if value % 16 == 0 and name not in plain:
                attributes[(index,)] = [["tt.divisibility", 16]]
    return signature | dict.fromkeys(launch.constants, "constexpr"), constants, attributes


def _key(launch: Launch) -> str:
    return repr((launch.fn.fn.__qualname__, launch.fn.fn.__module__, _specialised(launch), launch.warps))


def _nvidia(cubin: bytes) -> tuple[int, int]:
    """(registers, bytes of local memory that they spill to)."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        text = subprocess.run([tool, "--dump-resource-usage", path], capture_output=True, text=True, check=True).stdout
    found = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", text)}
    return found["REG"], found["STACK"] + found["LOCAL"]


def _amd(assembly: str) -> tuple[int, int]:
    """(vector registers, registers spilled)."""
    found = {name: int(value) for name, value in re.findall(r"\.(\w+_count):\s+(\d+)", assembly)}
    return found["vgpr_count"], found["vgpr_spill_count"] + found["sgpr_spill_count"]


def every_start() -> Iterator[tuple[str, Launch]]:
    """(op, start) of every kernel that the examples start."""
    for op in KERNELS:
        for launch in launches_of(op):
            yield op, launch


def main() -> None:
    rows = [compiled(op, launch, target) for op, launch in every_start() for target in TARGETS]
    with TABLE.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, [each.name for each in fields(Resources)], lineterminator="\n")
        table.writeheader()
        table.writerows(map(asdict, rows))
    sys.stdout.write(f"{len(rows)} kernels, {sum(each.spills > 0 for each in rows)} of them spill: {TABLE}\n")


if __name__ == "__main__":
    main()

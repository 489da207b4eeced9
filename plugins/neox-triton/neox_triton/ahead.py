"""Compiling kernels ahead of time, for GPUs that need not be there, and what they take of them.

`python -m neox_triton.ahead` compiles those that resources.csv does not have, for the sizes of all recipes and tensors
of bf16, fp16 and fp32, or of the dtypes that are its arguments. It adds each at once, so that a run that was stopped
continues where it was, and tells those that spill. Remove the file first to compile all, as another version of Triton
needs.
"""

from __future__ import annotations

import csv
import hashlib
import inspect
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import triton
from attrs import asdict, fields, frozen
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from neox_core.hooks.component import load_path
from neox_triton.choices import MAX_WIDTH
from neox_triton.examples import LARGE, Size
from neox_triton.launch import Launch, recording
from neox_triton.plugin import KERNELS, target_of

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
RECIPES = (
    *((128, 4), (192, 4), (256, 8), (512, 8), (640, 10), (768, 12), (1024, 16), (1536, 16), (2048, 8), (2048, 16)),
    *((2560, 32), (4096, 32), (5120, 40), (6144, 64), (12288, 96)),
)
"""(width, heads) of the models that configs/ has."""
SIZES = (LARGE, *(Size(*each) for each in RECIPES), Size(192, 4, seq=128), Size(MAX_WIDTH, 128))
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
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


def sizes_of(op: str) -> Sequence[Size]:
    """Sizes that an op's kernels tell apart: those of block-sparse attention know a model by the width of its heads."""
    return tuple({each.head_dim: each for each in SIZES}.values()) if op == "block_sparse_attention" else SIZES


def launches_of(op: str, dtype: torch.dtype = torch.bfloat16) -> list[Launch]:
    """Every different start of a kernel in the op's examples, forward and backward; nothing is computed."""
    kernel = load_path(target_of(op))
    with recording() as launches:
        for arguments in (each for size in sizes_of(op) for each in kernel.cases(dtype, torch.device("meta"), size)):
            if any("rows of" in reason for reason in kernel.why_not(arguments[0].shape, dtype, torch.device("cuda"))):
                continue
            returned = kernel(*arguments)
            results = [returned] if isinstance(returned, Tensor) else list(returned)
            inputs = [each for each in arguments if isinstance(each, Tensor) and each.requires_grad]
            if inputs:
                torch.autograd.grad(results, inputs, [torch.empty_like(each) for each in results])
    different = {_key(each): each for each in launches}
    return list(different.values())


def compiled(op: str, launch: Launch, target: str, dtype: str = "bf16") -> Resources:
    """One kernel compiled for one target, by the compilers that Triton ships."""
    source = ASTSource(launch.fn, *_specialised(launch))
    more = {"num_stages": launch.stages} if launch.stages else {}
    if launch.registers and TARGETS[target].backend == "cuda":
        more["maxnreg"] = launch.registers
    options = {"num_warps": launch.warps, "enable_fp_fusion": True, **more}
    binary = triton.compile(source, target=TARGETS[target], options=options)
    registers, spills = _nvidia(binary.asm["cubin"]) if "cubin" in binary.asm else _amd(binary.asm["amdgcn"])
    name = launch.fn.fn.__name__.lstrip("_")
    variant = "".join(f" {key}={value}" for key, value in launch.constants.items())
    return Resources(
        op, name + variant, target, dtype, launch.warps, registers, spills, binary.metadata.shared, digest(launch)
    )


def digest(launch: Launch) -> str:
    """Of what decides the machine code, but for the version of Triton."""
    module: Any = inspect.getmodule(launch.fn.fn)
    sources = [each.src for each in vars(module).values() if isinstance(each, JITFunction)]
    text = repr(
        (
            sources,
            launch.fn.fn.__name__,
            _specialised(launch),
            launch.warps,
            *filter(None, [launch.stages, launch.registers]),
        )
    )
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_table() -> list[Resources]:
    """The rows of the committed table."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        return [_row(line) for line in csv.DictReader(file)]


def _row(line: dict[str, str]) -> Resources:
    numbers = {"warps", "registers", "spills", "shared"}
    values: dict[str, Any] = {key: int(value) if key in numbers else value for key, value in line.items()}
    return Resources(**values)


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
    return repr(
        (
            launch.fn.fn.__qualname__,
            launch.fn.fn.__module__,
            _specialised(launch),
            launch.warps,
            launch.stages,
            launch.registers,
        )
    )


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


def every_start(dtype: torch.dtype = torch.bfloat16) -> Iterator[tuple[str, Launch]]:
    """(op, start) of every kernel that the examples start."""
    for op in KERNELS:
        for launch in launches_of(op, dtype):
            yield op, launch


def main() -> int:
    """Compile every kernel for every target and write the table; returns the exit code."""
    rows = {(row.op, row.source, row.target): row for row in read_table()} if TABLE.exists() else {}
    wanted = [
        (op, launch, target, dtype)
        for dtype in DTYPES
        for op, launch in every_start(DTYPES[dtype])
        for target in TARGETS
    ]
    asked = sys.argv[1:] or [*DTYPES]
    for op, launch, target, dtype in wanted:
        at = op, digest(launch), target
        if at not in rows and dtype in asked:
            rows[at] = compiled(op, launch, target, dtype)
            _write_table([*rows.values()])
    found = {at: rows[at] for op, launch, target, _ in wanted if (at := (op, digest(launch), target)) in rows}
    _write_table([*found.values()])
    spilling = [each for each in found.values() if each.spills]
    sys.stdout.writelines(
        f"{each.op} {each.kernel} of {each.dtype} on {each.target} spills {each.spills}\n" for each in spilling
    )
    sys.stdout.write(f"{len(found)} kernels, {len(spilling)} of them spill\n")
    return 1 if spilling else 0


def _write_table(rows: Sequence[Resources]) -> None:
    unfinished = TABLE.with_suffix(".part")
    with unfinished.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, [each.name for each in fields(Resources)], lineterminator="\n")
        table.writeheader()
        table.writerows(map(asdict, rows))
    unfinished.replace(TABLE)


if __name__ == "__main__":
    sys.exit(main())

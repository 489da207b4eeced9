"""Rows of benchmarks/results.csv: what was measured, where, with what."""

import csv
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import quantiles

FILE = Path(__file__).with_name("results.csv")
KINDS = {"Zen 5": "avx512_vp2intersect", "Zen 4": "avx512f", "Zen 3": ""}
"""By what a processor has that older ones have not."""
COLUMNS = ("date", "commit", "machine", "versions", "benchmark", "case", "unit", "runs", "p20", "median", "p80")


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=FILE.parent, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


COMMIT = _commit()
"""Asked before the first row is written, which changes the tree."""


def append_row(benchmark: str, case: str, unit: str, values: Sequence[float]) -> None:
    """Add one row: the 20th, 50th and 80th percentile of `values`, and print it."""
    fifths = quantiles(values, n=10, method="inclusive") if len(values) > 1 else list(values) * 9
    p20, median, p80 = (f"{fifths[index]:.4g}" for index in (1, 4, 7))
    row = (
        datetime.now(timezone.utc).date().isoformat(),
        COMMIT,
        machine(),
        _versions(),
        benchmark,
        case,
        unit,
        len(values),
        p20,
        median,
        p80,
    )
    new = not FILE.exists()
    with FILE.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(COLUMNS)
        writer.writerow(row)
    print(f"{benchmark:12} {case:32} {median:>10} {unit}  ({p20} .. {p80}, {len(values)} runs)")


def machine() -> str:
    """The processor, its kind, and how many there are."""
    said = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    names = re.findall(r"^model name\s*: (.*)$", said, re.MULTILINE) or [platform.processor()]
    kind = f", {kind_of(said)} by its flags" if "AuthenticAMD" in said else ""
    return f"{names[0]}{kind}, {os.cpu_count()} cores"


def kind_of(cpuinfo: str) -> str:
    """The kind of AMD's processors that is most like the one of /proc/cpuinfo by its flags."""
    return next(kind for kind, flag in KINDS.items() if not flag or flag in cpuinfo.split())


def _versions() -> str:
    found = [f"python {platform.python_version()}"]
    for name in ("torch", "deepspeed", "transformers"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)

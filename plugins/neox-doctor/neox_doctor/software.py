"""The software: Python, the libraries and their versions, the GPUs that torch sees, and the plugins."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from neox_core.errors import NeoxError, PluginError
from neox_core.hooks.loader import load_plugins
from neox_core.interpreter import python
from neox_core.untrusted import parse_object, short
from neox_doctor.finding import Finding

LIBRARIES = ("neox-core", "torch", "deepspeed", "triton", "numpy")
SECONDS = 120
"""For torch to be imported; some seconds are usual, and a minute from a shared disk."""
SHOWN = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "NEOX_PLUGINS_DISABLE")
"""Environment variables that explain much; no other is shown, since values may be secrets."""
PREFIXES = ("NCCL_", "GLOO_")


def examine_software() -> Iterator[Finding]:
    """Findings about what is installed."""
    yield Finding("ok", "python", platform.python_version(), same=platform.python_version())
    for name in LIBRARIES:
        yield _library(name)
    yield from _torch()
    yield from _plugins()
    chosen = {name: value for name, value in os.environ.items() if name in SHOWN or name.startswith(PREFIXES)}
    yield Finding("ok", "environment", ", ".join(f"{name}={value}" for name, value in sorted(chosen.items())) or "-")


def _library(name: str) -> Finding:
    try:
        found = version(name)
    except PackageNotFoundError:
        if name == "torch":
            return Finding("fix", name, "not installed", "install a build of torch for this machine")
        hint = "`engine: plain` trains without it" if name == "deepspeed" else "only some features need it"
        return Finding("warning", name, "not installed", hint)
    return Finding("ok", name, found, same=found)


def _torch() -> Iterator[Finding]:
    """In a process of its own: a broken driver can end the process that asks for it."""
    try:
        done = subprocess.run(python("neox_doctor.gpus"), capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        yield Finding(
            "fix", "torch", f"was not imported within {SECONDS} s", "look at the disk, and at the GPU's driver"
        )
        return
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        yield Finding("fix", "torch", f"cannot be used: {short(said[-1])}", "install torch again")
        return
    try:
        found = parse_object(done.stdout, Path("torch"), PluginError)
    except NeoxError as error:
        yield Finding("fix", "torch", error.message, "install torch again")
        return
    built, driver, gpus = (found.get(name) for name in ("built", "driver", "gpus"))
    if not gpus:
        blind = bool(driver) and not built
        hint = (
            "install a build of torch for CUDA" if blind else "" if not driver else "CUDA_VISIBLE_DEVICES may hide them"
        )
        seen = f"none that torch can use; built for {built or 'CPUs'}, driver {driver or 'none'}"
        yield Finding("fix" if driver else "ok", "GPUs", short(seen), hint)
        return
    nccl = f", NCCL {found['nccl']}" if found.get("nccl") else ""
    seen = f"{json.dumps(gpus)}; built for {built}, driver {driver}{nccl}"
    yield Finding("ok", "GPUs", short(seen), same=short(f"{built} {found.get('nccl')}"))


def _plugins() -> Iterator[Finding]:
    catalog = load_plugins()
    for report in catalog.failed():
        yield Finding("fix", "plugin", short(report.line), short(report.hint))
    for said, hint in catalog.misnamed():
        yield Finding("fix", "plugin", short(said), short(hint))
    working = sorted(f"{each.plugin.id} {each.plugin.version}" for each in catalog.reports if each.status == "ok")
    yield Finding("ok", "plugins", f"{len(working)} work", same=" ".join(working))

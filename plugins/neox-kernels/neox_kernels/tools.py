"""The work of `neox kernels list`, `check`, `bench` and `tune`: a process of its own, which imports torch."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import asdict

from neox_core.errors import ConfigError, PluginError, run_main
from neox_core.hooks.component import load_path
from neox_core.parallel.context import DTYPES
from neox_core.plan.runfile import ComponentRef, KernelPlan
from neox_core.terminal import echo, echo_json
from neox_kernels.choose import architecture_of, choose, load_kernel, set_up, why_not
from neox_kernels.compare import TOLERANCE, Verdict, compare
from neox_kernels.measure import times_of
from neox_kernels.roofline import traffic_of
from neox_kernels.tiles import own_table, write_table
from neox_kernels.tune import tuned


def listed(
    rows: Sequence[Mapping[str, Any]], device: torch.device, dtype: torch.dtype, *, roofline: bool = False
) -> Iterator[str]:
    """Lines on what `auto` chooses for each op. roofline: also on what its kernels move through memory."""
    yield f"on {_name(device)}, {dtype_name(dtype)}:"
    for op in choices(rows, device, dtype, roofline=roofline):
        yield f"{op['op']}: {op['choice']}  ({', '.join(op['owners'])})"
        for each in op["not_chosen"]:
            yield f"    not {each['name']}: {', '.join(each['reasons'])}"
        if not op["num_kernels"]:
            yield "    no kernel is installed"
        for each in op["traffic"]:
            yield f"    {each['name']} {each['line']}"


def choices(
    rows: Sequence[Mapping[str, Any]], device: torch.device, dtype: torch.dtype, *, roofline: bool = False
) -> Iterator[dict[str, Any]]:
    """What `auto` chooses for each op, as plain values; the arguments as of `listed`."""
    for row in rows:
        offers = _offers(row)
        shape = next(filter(None, (_shape_if_any(each, dtype) for each in offers)), ())
        choice = choose(KernelPlan(row["op"], "auto", "", offers), shape, dtype, device)
        others = [{"name": name, "reasons": list(reasons)} for name, reasons in choice.passed_over]
        yield {
            "op": row["op"],
            "choice": choice.name,
            "owners": list(row["owners"]),
            "num_kernels": len(offers) + len(row["missing"]),
            "not_chosen": others + [{"name": each["name"], "reasons": [each["reason"]]} for each in row["missing"]],
            "traffic": [{"name": each.name, "line": _roofline(each, dtype)} for each in offers] if roofline else [],
        }


def _shape_if_any(offer: ComponentRef, dtype: torch.dtype) -> tuple[int, ...]:
    """`_shape`, and () for a kernel that cannot be used."""
    try:
        return _shape(offer, dtype)
    except PluginError:
        return ()


def _roofline(offer: ComponentRef, dtype: torch.dtype) -> str:
    kernel: Any = load_kernel(offer)
    if not hasattr(kernel, "recording"):
        return "has no model of its traffic"
    with offer.blamed():
        return traffic_of(kernel, next(iter(kernel.examples(dtype, torch.device("meta"), large=True)))).line


def checked(rows: Sequence[Mapping[str, Any]], device: torch.device) -> Iterator[tuple[bool | None, str]]:
    """(right or wrong, None where it cannot run; a line) of each kernel and dtype.

    Raises PluginError for the first kernel that fails, once all others have been checked.
    """
    failed: list[PluginError] = []
    for row in rows:
        reference = load_path(row["reference"])
        for offer in _offers(row):
            try:
                yield from _checked(offer, reference, device)
            except PluginError as error:
                failed.append(error)
                yield False, f"{offer.name}: WRONG: {error.message}"
    if failed:
        raise failed[0]


def _checked(
    offer: ComponentRef, reference: Callable[..., Any], device: torch.device
) -> Iterator[tuple[bool | None, str]]:
    kernel = load_kernel(offer)
    set_up(offer, kernel, device)
    for dtype, limit in TOLERANCE.items():
        title = f"{offer.name} {dtype_name(dtype)}"
        reasons = why_not(offer, kernel.why_not, _shape(offer, dtype), dtype, device)
        if reasons:
            yield None, f"{title}: cannot run: {', '.join(reasons)}"
            continue
        with offer.blamed():
            examples = kernel.examples(dtype, device, large=False)
            verdicts = [compare(kernel, reference, arguments) for arguments in examples]
        right, said = _judged(verdicts, limit)
        yield right, f"{title}: {said}" if right else f"{title}: WRONG: {said} (from {offer.plugin} {offer.version})"


def _judged(verdicts: Sequence[Verdict], limit: float) -> tuple[bool, str]:
    """(right or wrong, in words) of a kernel by its examples."""
    if not verdicts:
        return False, "it has no examples"
    worst = max(verdicts, key=lambda each: each.error)
    if fault := worst.fault(limit):
        return False, fault
    return True, f"ok, off by {worst.error:.1e} of {limit:.0e}"


def measured(rows: Sequence[Mapping[str, Any]], device: torch.device, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """Seconds of a forward and a backward pass, of each kernel and of its reference, or why it cannot run.

    Raises ConfigError on a CPU.
    """
    if device.type != "cuda":
        raise ConfigError(
            "kernels are measured on a GPU", hint="run it on a GPU; on a CPU kernels are only interpreted, for tests"
        )
    for row in rows:
        for offer in _offers(row):
            kernel = load_kernel(offer)
            if reasons := why_not(offer, kernel.why_not, _shape(offer, dtype), dtype, device):
                yield {"kernel": offer.name, "cannot_run": list(reasons)}
                continue
            reference = load_path(row["reference"])
            set_up(offer, kernel, device)
            with offer.blamed():
                arguments = next(iter(kernel.examples(dtype, device, large=True)))
                own, plain = (statistics.median(times_of(each, arguments)) for each in (kernel, reference))
            yield {"kernel": offer.name, "seconds": own, "reference_seconds": plain}


def _timed(found: Mapping[str, Any]) -> str:
    """What `measured` found of a kernel, in words."""
    if "cannot_run" in found:
        return f"{found['kernel']}: cannot run: {', '.join(found['cannot_run'])}"
    own, plain = found["seconds"], found["reference_seconds"]
    return f"{found['kernel']}: {own * 1e3:.3f} ms, reference {plain * 1e3:.3f} ms, {plain / own:.2f} times as fast"


def dtype_name(dtype: torch.dtype) -> str:
    """The short name of a dtype, as options take it."""
    return next(name for name, each in DTYPES.items() if each == dtype)


def _offers(row: Mapping[str, Any]) -> tuple[ComponentRef, ...]:
    return tuple(ComponentRef(**each) for each in row["offers"])


def _shape(offer: ComponentRef, dtype: torch.dtype) -> tuple[int, ...]:
    """Of the first tensor of a kernel's first large example, of which nothing is computed."""
    kernel = load_kernel(offer)
    with offer.blamed():
        arguments = next(iter(kernel.examples(dtype, torch.device("meta"), large=True)), None)
        if arguments is None:
            raise ValueError("examples() gives no arguments where large is true")
        return tuple(arguments[0].shape)


def _name(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    return f"{name} ({architecture_of(device)})"


def _show(lines: Iterator[str]) -> int:
    for line in lines:
        echo(line)
    return 0


def _check(rows: Sequence[Mapping[str, Any]], device: torch.device, *, as_json: bool) -> int:
    verdicts = []
    for verdict, line in checked(rows, device):
        verdicts.append(verdict)
        _say({"kernel": line.split()[0].rstrip(":"), "right": verdict, "said": line}, line, as_json=as_json)
    ran = [each for each in verdicts if each is not None]
    return 0 if ran and all(ran) else 1


def _bench(rows: Sequence[Mapping[str, Any]], device: torch.device, dtype: torch.dtype, *, as_json: bool) -> int:
    for found in measured(rows, device, dtype):
        _say(found, _timed(found), as_json=as_json)
    return 0


def _say(found: Mapping[str, Any], line: str, *, as_json: bool) -> None:
    """A line for people, or one of JSON."""
    echo(json.dumps(found) if as_json else line)


def _tune(
    rows: Sequence[Mapping[str, Any]], dtype: torch.dtype, out: str | None, by: str | None, *, as_json: bool
) -> int:
    """Each row is in the table once it is known, so that what ends the work early loses nothing."""
    if not torch.cuda.is_available():
        raise ConfigError(
            "tiles are measured on a GPU, and there is none here that torch can use",
            hint="run it on a machine like those that train; without a table, kernels use the tiles of their plugin",
        )
    path = Path(out) if out else own_table()
    if path is None:
        raise ConfigError("there is no cache folder to write the table to", hint="name a file with --out")
    device, known = torch.device("cuda"), 0
    given = by or f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}"
    for row, line in tuned(rows, device, dtype, ascii(given)[1:-1][:200]):
        if row is not None:
            write_table(path, [row])
            known += 1
        _say({"tile": None if row is None else asdict(row), "said": line}, line, as_json=as_json)
    said = f"{known} tiles in {path}" + ("" if path == own_table() else f"; to use them, copy it to {own_table()}")
    _say({"tiles": known, "table": str(path)}, said, as_json=as_json)
    return 0 if known else 1


def main() -> int:
    """Check, time or tune kernels, as the command line asks in JSON; returns the exit code."""
    asked = json.loads(sys.argv[1])
    rows, as_json = asked["ops"], asked["as_json"]
    if asked["what"] == "tune":
        return _tune(rows, DTYPES[asked["dtype"]], asked["out"], asked["by"], as_json=as_json)
    kind = asked["device"]
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError("there is no GPU that torch can use here", hint="--device cpu")
    device = torch.device(kind)
    if as_json and asked["what"] == "list":
        dtype = DTYPES[asked["dtype"]]
        ops = list(choices(rows, device, dtype, roofline=asked["roofline"]))
        echo_json({"device": _name(device), "dtype": dtype_name(dtype), "ops": ops})
        return 0
    work: Mapping[str, Callable[[], int]] = {
        "list": lambda: _show(listed(rows, device, DTYPES[asked["dtype"]], roofline=asked["roofline"])),
        "check": lambda: _check(rows, device, as_json=as_json),
        "bench": lambda: _bench(rows, device, DTYPES[asked["dtype"]], as_json=as_json),
    }
    return work[asked["what"]]()


if __name__ == "__main__":
    run_main(main)

"""`neox kernels`: what computes an op here, whether the result is right, how fast it is, and in which tiles.

A process that may import torch does the work.
"""

from typing import Any, NoReturn

import click
from neox_author.api import Op, installed_ops

from neox_core.cli.process import exec_module
from neox_core.hooks.loader import load_plugins
from neox_core.hooks.registry import Registry
from neox_core.plan.component import offered

_device = click.option("--device", default="auto", show_default=True, type=click.Choice(["auto", "cpu", "cuda"]))
_dtype = click.option(
    "--dtype", default="bf16", show_default=True, type=click.Choice(["fp32", "bf16", "fp16"]), help="Of the tensors."
)
_lines = click.option("--json", "as_json", is_flag=True, help="JSON, an object a line.")


@click.group()
def kernels() -> None:
    """Show, check, measure and tune the kernels of the installed plugins."""


@kernels.command("list")
@_device
@_dtype
@click.option("--roofline", is_flag=True, help="Also estimate what each kernel moves through memory; needs no GPU.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object instead of lines.")
def list_kernels(device: str, dtype: str, roofline: bool, as_json: bool) -> None:
    """List each op with what computes it here: the choice of `auto`, and why not the others."""
    _work("list", device, (), {"dtype": dtype, "roofline": roofline, "as_json": as_json})


@kernels.command()
@click.argument("ops", nargs=-1)
@_device
@_lines
def check(ops: tuple[str, ...], device: str, as_json: bool) -> None:
    """Compare the kernels of OPS, or all, with their references on this device, forward and backward.

    Names the kernels that cannot run here, with the reasons. Exits with 1 when a kernel is wrong, or when none can run.
    """
    _work("check", device, ops, {"as_json": as_json})


@kernels.command()
@click.argument("ops", nargs=-1)
@_device
@_dtype
@_lines
def bench(ops: tuple[str, ...], device: str, dtype: str, as_json: bool) -> None:
    """Measure the kernels of OPS, or all, and their references, forward and backward, on the shapes of a 7B model."""
    _work("bench", device, ops, {"dtype": dtype, "as_json": as_json})


@kernels.command()
@click.argument("ops", nargs=-1)
@_dtype
@click.option("--out", type=click.Path(dir_okay=False), help="The table to write, instead of the one that runs read.")
@click.option("--by", help="Text for the column `by` of the table. Default: the GPU and the version of torch.")
@_lines
def tune(ops: tuple[str, ...], dtype: str, out: str | None, by: str | None, as_json: bool) -> None:
    """Measure the tiles that the kernels of OPS, or all, can use on this GPU, and write the fastest to a table.

    A tile is compared with the reference first. The table is tiles.csv in the user's cache folder, which runs and the
    other commands here read. A run that resumes with another table rounds differently.
    """
    _work("tune", "cuda", ops, {"dtype": dtype, "out": out, "by": by, "as_json": as_json})


def _work(what: str, device: str, names: tuple[str, ...], options: dict[str, Any]) -> NoReturn:
    registry = load_plugins().registry
    known = installed_ops(registry)
    unknown = sorted(set(names) - {op.name for op in known})
    if unknown:
        raise click.UsageError(f"no op {unknown[0]!r}; known are: {', '.join(op.name for op in known)}")
    wanted = [op for op in known if not names or op.name in names]
    rows = [_row(op, registry) for op in wanted]
    exec_module("neox_kernels.tools", {"what": what, "device": device, "ops": rows, **options})


def _row(op: Op, registry: Registry) -> dict[str, Any]:
    offers = [each for each in registry.entries("kernel") if each.component.name.partition(".")[0] == op.name]
    missing = [
        {"name": each.qualified, "reason": f"needs {', '.join(each.component.missing())}"}
        for each in offers
        if each.component.missing()
    ]
    ready = [offered(each).plain() for each in offers if not each.component.missing()]
    return {"op": op.name, "reference": op.reference, "owners": op.owners, "offers": ready, "missing": missing}

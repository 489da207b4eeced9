"""The check of a kernel: against the reference of its op, as `neox kernels check` compares them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from neox_author.ops import installed_ops
from neox_author.testing.clauses import clauses, has, hold, not_applicable
from neox_author.testing.resolved import completed
from neox_core.hooks.component import load_path

if TYPE_CHECKING:
    from neox_core.hooks.catalog import Catalog


@clauses
def check_kernel(catalog: Catalog, name: str) -> None:
    """The clauses of contracts.Kernel, on this CPU. Raises AssertionError with the one that does not hold."""
    import torch

    entry = catalog.find("kernel", name)
    kernel, (op, _, implementation) = entry.load(), name.rpartition(":")[2].partition(".")
    hold(bool(op and implementation), "a kernel is called <op>.<implementation>")
    has(kernel, "a kernel", "why_not", "examples", "__call__")
    words = isinstance(kernel.tested, frozenset) and all(isinstance(each, str) for each in kernel.tested)
    hold(words, "`tested` is a frozenset of devices, such as sm_90")
    references = {each.name: each.reference for each in installed_ops(completed(catalog).registry)}
    clause = "it equals the reference, forward and backward"
    if op not in references or find_spec("neox_kernels") is None:
        lacks = f"no installed component has an op {op}" if op not in references else "it needs neox-kernels"
        not_applicable(clause, lacks)
        return
    from neox_kernels.api import TOLERANCE, compare

    reference, device = load_path(references[op]), torch.device("cpu")
    meta = [*kernel.examples(torch.bfloat16, torch.device("meta"), large=True)]
    hold(bool(meta), "examples() gives large ones too, on any device")
    for dtype, allowed in TOLERANCE.items():
        examples = [*kernel.examples(dtype, device, large=False)]
        hold(bool(examples), "examples() gives arguments for each dtype")
        for arguments in examples:
            first = next(each for each in arguments if isinstance(each, torch.Tensor))
            why = kernel.why_not(tuple(first.shape), first.dtype, device)
            hold(isinstance(why, tuple), f"why_not() gives a tuple of reasons, not {why!r}")
            if why:
                not_applicable(clause, f"it does not run here: {why[0]}")
                continue
            fault = compare(kernel, reference, arguments).fault(allowed)
            hold(not fault, f"{clause}; in {str(dtype).removeprefix('torch.')}: {fault}")

"""Orders of samples made before a run: the work of `neox data index`, in a process of its own."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

from neox_core.contracts.objective import Split
from neox_core.data.samples import open_counted, samples_wanted
from neox_core.errors import run_main
from neox_core.plan.runfile import receive_plan
from neox_core.terminal import echo

if TYPE_CHECKING:
    from neox_core.plan.runfile import RunPlan


def index_data(plan: RunPlan) -> list[str]:
    """Make the orders that a run of this plan will read, and say what they hold. Raises DataError."""
    wanted: list[Split] = ["train"]
    if plan.train.eval_iters and plan.train.eval_interval:
        wanted.append("valid")
    if plan.train.eval_iters and plan.data.has_test:
        wanted.append("test")
    lines = []
    for split in wanted:
        began = time.perf_counter()
        samples = open_counted(plan, split)
        lines += [f"{split}: {line}" for line in samples.in_words()]
        count, took = samples_wanted(plan, split), time.perf_counter() - began
        lines.append(f"{split}: {count:,} samples are wanted, ready in {took:.1f} s")
    return lines


def main() -> None:
    """`python -m neox_data.index JSON`: plan."""
    plan = receive_plan(json.loads(sys.argv[1])["plan"])
    echo("\n".join(index_data(plan)))


if __name__ == "__main__":
    run_main(main)

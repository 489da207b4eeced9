"""Orders of samples made before a run: the work of `neox data index`, in a process of its own."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

from attrs import asdict, frozen

from neox_core.contracts.objective import Split
from neox_core.data.samples import open_counted, samples_wanted
from neox_core.errors import run_main
from neox_core.plan.runfile import receive_plan
from neox_core.terminal import echo, echo_json

if TYPE_CHECKING:
    from neox_core.plan.runfile import RunPlan


@frozen
class Indexed:
    """The orders of a split. samples: that the run wants. lines: what the orders hold."""

    samples: int
    seconds: float
    lines: list[str]


def index_data(plan: RunPlan) -> dict[Split, Indexed]:
    """Make the orders that a run of this plan will read, of each split. Raises DataError."""
    wanted: list[Split] = ["train"]
    if plan.train.eval_iters and plan.train.eval_interval:
        wanted.append("valid")
    if plan.train.eval_iters and plan.data.has_test:
        wanted.append("test")
    found = {}
    for split in wanted:
        began = time.perf_counter()
        lines = list(open_counted(plan, split).in_words())
        found[split] = Indexed(samples_wanted(plan, split), time.perf_counter() - began, lines)
    return found


def main() -> None:
    """`python -m neox_data.index JSON`: plan, as_json."""
    raw = json.loads(sys.argv[1])
    found = index_data(receive_plan(raw["plan"]))
    if raw["as_json"]:
        echo_json({split: asdict(each) for split, each in found.items()})
        return
    for split, each in found.items():
        ready = f"{each.samples:,} samples are wanted, ready in {each.seconds:.1f} s"
        echo("\n".join(f"{split}: {line}" for line in (*each.lines, ready)))


if __name__ == "__main__":
    run_main(main)

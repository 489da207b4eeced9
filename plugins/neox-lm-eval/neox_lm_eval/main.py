"""`python -m neox_lm_eval.main JSON`: what `neox eval` does where torch may be imported."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from neox_core.errors import UsageError, run_main
from neox_core.terminal import echo, echo_json
from neox_lm_eval.model import NeoxCheckpoint
from neox_lm_eval.settings import Evaluation
from neox_lm_eval.tasks import Scores, Tasks


def evaluate(load: str, device: str, evaluation: Evaluation) -> Scores:
    """The scores of the model in a checkpoint."""
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("there is no GPU here that torch can use", hint="leave out --device, or use --device cpu")
    tasks = Tasks.load(evaluation)
    return tasks.scores(NeoxCheckpoint(load, None if device == "auto" else device, evaluation.batch_size))


def main() -> None:
    """Evaluate a checkpoint as the command line asks in JSON."""
    raw: dict[str, Any] = json.loads(sys.argv[1])
    load, device, as_json = (raw.pop(name) for name in ("load", "device", "as_json"))
    evaluation = Evaluation(**{**raw, "tasks": tuple(raw["tasks"])})
    scores = evaluate(load, device, evaluation)
    if as_json:
        echo_json({"load": load, "limit": evaluation.limit, "num_fewshot": evaluation.num_fewshot, "scores": scores})
        return
    rows = [(task, metric, f"{value:.6g}") for task, metrics in scores.items() for metric, value in metrics.items()]
    widths = [max(len(row[column]) for row in rows) if rows else 0 for column in range(2)]
    for task, metric, value in rows:
        echo(f"{task:<{widths[0]}}  {metric:<{widths[1]}}  {value}")


if __name__ == "__main__":
    run_main(main)

"""Loads tasks of lm-evaluation-harness and computes their scores, with one error for what a user can repair."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from neox_core.errors import DataError, NeoxError, UsageError
from neox_core.untrusted import short

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager

    from neox_lm_eval.model import NeoxLM
    from neox_lm_eval.settings import Evaluation

Scores = Mapping[str, Mapping[str, float]]
"""Task or group -> name of the metric -> its value."""


@frozen
class Tasks:
    """loaded: what the harness made of the names; its datasets are read."""

    evaluation: Evaluation
    loaded: Mapping[str, Any]

    @classmethod
    def load(cls, evaluation: Evaluation) -> Tasks:
        """Raises UsageError for a name that no task has, DataError for a dataset that cannot be read."""
        from lm_eval.tasks import TaskManager

        logging.getLogger("lm_eval").setLevel(logging.ERROR)
        if evaluation.folder is not None and not Path(evaluation.folder).is_dir():
            raise UsageError(f"{evaluation.folder}: is not a folder", hint="name the folder that holds tasks in YAML")
        with _in_words(f"folder {evaluation.folder}"):
            manager = TaskManager(include_path=evaluation.folder, include_defaults=evaluation.folder is None)
            if evaluation.folder is not None and not {*evaluation.tasks} <= {*manager.all_subtasks}:
                manager = TaskManager(include_path=evaluation.folder)  # reads thousands of files
        loaded: dict[str, Any] = {"tasks": {}, "groups": {}, "group_map": {}}
        for name in evaluation.tasks:
            _require(name, manager)
            with _in_words(name):
                one = manager.load([name])
            for part, known in loaded.items():
                known.update(one.get(part, {}))
        return cls(evaluation, loaded)

    def scores(self, lm: NeoxLM) -> Scores:
        """What the model scores, the same on all ranks."""
        from lm_eval.evaluator import evaluate

        for task in self.loaded["tasks"].values():
            if self.evaluation.num_fewshot is not None and task.get_config("num_fewshot") != 0:
                task.set_config(key="num_fewshot", value=self.evaluation.num_fewshot)
            elif task.get_config("num_fewshot") is None:
                task.set_config(key="num_fewshot", value=0)
            task.set_fewshot_seed(seed=SEED)
        with _in_words("the evaluation"):
            found = evaluate(
                lm, dict(self.loaded), limit=self.evaluation.limit, bootstrap_iters=0, log_samples=False, verbosity=None
            )
        results = {**found.get("groups", {}), **found["results"]}
        return {name: dict(_metrics(values)) for name, values in sorted(results.items())}


SEED = 1234
"""Of the examples before a question, as the harness has it."""


def _metrics(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """`acc,none` is `acc`; another filter stays in the name."""
    for name, value in values.items():
        metric, _, kept = name.partition(",")
        if isinstance(value, int | float) and not isinstance(value, bool) and kept and not metric.endswith("_stderr"):
            yield (metric if kept == "none" else f"{metric}.{kept}"), float(value)


def _require(name: str, manager: TaskManager) -> None:
    if name in manager.all_tasks:
        return
    near = get_close_matches(name, manager.all_tasks, 1)
    way_out = f"did you mean {near[0]!r}?" if near else "`lm_eval ls tasks` lists the tasks of the harness"
    raise UsageError(f"no task {short(name)!r} in lm-evaluation-harness", hint=way_out)


@contextmanager
def _in_words(what: str) -> Iterator[None]:
    """What the harness and its datasets raise, as one error."""
    try:
        yield
    except NeoxError:
        raise
    except Exception as error:
        raise _told(what, error) from error


OFFLINE = ("offline", "connect", "couldn't reach", "could not reach", "resolve", "timed out", "max retries", "network")


def _told(what: str, error: Exception) -> NeoxError:
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and len(chain) < 20:
        chain.append(cause)
    said = " ".join(f"{type(each).__name__} {each}" for each in chain).lower()
    why = short(f"{type(error).__name__}: {error}")
    if any(word in said for word in OFFLINE):
        place = os.environ.get("HF_HOME", "~/.cache/huggingface")
        return DataError(
            f"task {short(what)}: its dataset is not on this machine and cannot be downloaded: {why}",
            hint=f"run once where there is a network, and copy {place}; or name a task with local data",
        )
    return DataError(f"task {short(what)}: {why}", hint="see its YAML file; `neox --debug` shows the traceback")


def by_name(scores: Scores) -> dict[str, float]:
    """One number by name, `<task>_<metric>`, for a log."""
    return {
        re.sub(r"[^\w.-]+", "_", f"{task}_{metric}"): value
        for task, metrics in scores.items()
        for metric, value in metrics.items()
        if not math.isnan(value)
    }

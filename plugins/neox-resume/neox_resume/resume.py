"""The checkpoint that a run would resume from, found on the host, and why the ranks would refuse it."""

from collections.abc import Iterator

from attrs import evolve

from neox_core.config.problem import Problem
from neox_core.config.schema.structure import Config
from neox_core.errors import CheckpointError
from neox_core.plan.runfile import RunPlan
from neox_core.plan.stored.saved import require_checkpoint
from neox_core.plan.stored.stores import checkpoint_to_load, open_stores


def resume_problems(config: Config, plan: RunPlan) -> Iterator[Problem]:
    """Why the ranks would refuse to resume, with their exit code, and a warning where no steps would be left."""
    return (evolve(each, exit_code=CheckpointError.exit_code) for each in _problems(config, plan))


def _problems(config: Config, plan: RunPlan) -> Iterator[Problem]:
    key = "load" if config.is_set("load") or not config.is_set("save") else "save"
    try:
        folder, own = checkpoint_to_load(plan.checkpoint, open_stores(plan.checkpoint))
        require_checkpoint(plan.checkpoint, folder)
        if folder is None:
            if config.is_set("load"):
                yield config.problem("holds no checkpoint yet, so the run starts at step 0", key, severity="note")
            return
        from neox_resume.compare import compared, read_saved  # 30 ms, where there is something to compare with

        saved = read_saved(folder, weights=plan.checkpoint.finetune and not own)
    except CheckpointError as error:
        yield config.problem(error.message, key, error.hint)
        return
    yield from compared(config, plan, saved, key, own=own)

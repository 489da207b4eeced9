"""What is saved, when and how, and what a run starts from."""

from typing import Any

from attrs import frozen

from neox_core.config.schema.checks import above, distinct
from neox_core.config.schema.setting import Changes, setting


def _steps(instance: Any, field: Any, value: tuple[int, ...]) -> None:
    """Steps, each of them once."""
    distinct(instance, field, value)
    if any(step < 0 for step in value):
        raise ValueError("must hold steps of 0 or more")


def _switch(*, help: str, changes: Changes = "numerics") -> Any:
    return setting(False, help=help, changes=changes, origin="megatron")


@frozen
class CheckpointSection:
    """What is saved and what a run starts from."""

    save: str | None = setting(
        None,
        help="Folder for checkpoints, logs and metrics. Default: no checkpoints.",
        changes="output",
        origin="megatron",
    )
    save_interval: int | None = setting(
        None,
        help="Steps between checkpoints.",
        unit="steps",
        check=above(0),
        changes="output",
        aliases=("checkpoint_factor",),
        origin="megatron",
    )
    load: str | None = setting(None, help="Folder whose newest checkpoint the run continues.", origin="megatron")
    keep_last_n_checkpoints: int | None = setting(
        None,
        help="Checkpoints to keep; older ones are removed after each save. Default: all.",
        check=above(0),
        changes="output",
        origin="gpt-neox",
    )
    finetune: bool = _switch(help="Load weights only and count from step 0.")
    no_load_optim: bool = _switch(help="Load weights, but not the optimizer state.")
    no_load_rng: bool = _switch(help="Do not load the random generators. No loss depends on them.")
    no_save_optim: bool = _switch(help="Leave optimizer and schedule out of checkpoints.", changes="output")
    no_save_rng: bool = _switch(
        help="Leave random generators out of checkpoints. No loss depends on them.", changes="output"
    )
    extra_save_iters: tuple[int, ...] = setting(
        (),
        help="Steps to save at besides those of save-interval; 0: before the first.",
        unit="steps",
        check=_steps,
        changes="output",
        origin="gpt-neox",
    )

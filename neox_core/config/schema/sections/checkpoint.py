"""What is saved, when and how, and what a run starts from."""

from typing import Any, Literal

from attrs import frozen

from neox_core.config.schema.checks import above, distinct
from neox_core.config.schema.setting import setting

TagValidation = Literal["Ignore", "Warn", "Fail", "ignore", "warn", "fail", "IGNORE", "WARN", "FAIL"]


def _steps(instance: Any, field: Any, value: tuple[int, ...]) -> None:
    """Steps, each of them once."""
    distinct(instance, field, value)
    if any(step < 0 for step in value):
        raise ValueError("must hold steps of 0 or more")


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
    finetune: bool = setting(False, help="Load weights only and count from step 0.", origin="megatron")
    no_load_optim: bool = setting(False, help="Load weights, but not the optimizer state.", origin="megatron")
    no_load_rng: bool = setting(
        False, help="Do not load the random generators. No loss depends on them.", origin="megatron"
    )
    no_save_optim: bool = setting(
        False, help="Leave optimizer and schedule out of checkpoints.", changes="output", origin="megatron"
    )
    no_save_rng: bool = setting(
        False,
        help="Leave random generators out of checkpoints. No loss depends on them.",
        changes="output",
        origin="megatron",
    )


@frozen
class ParallelWriteBlock:
    """Who writes a checkpoint."""

    pipeline_stage: bool = setting(
        False,
        help="Let data-parallel ranks share the writing of a stage's layers: neox always does this.",
        changes="speed",
        origin="deepspeed",
    )


@frozen
class CheckpointBlock:
    """How checkpoints are written and read."""

    tag_validation: TagValidation = setting(
        "Warn",
        help="What to do when ranks name a checkpoint differently. This cannot happen: a run stops "
        "at the start when ranks find different checkpoints.",
        changes="output",
        origin="deepspeed",
    )
    load_universal: bool = setting(
        False,
        help="Load on another number of ranks than wrote the checkpoint: every checkpoint allows this.",
        changes="output",
        origin="deepspeed",
    )
    use_node_local_storage: bool = setting(
        False,
        help="Save on a local disk of the host: for runs on one host.",
        changes="output",
        origin="deepspeed",
    )
    parallel_write: ParallelWriteBlock = setting(
        ParallelWriteBlock(), help="Block: who writes a checkpoint.", changes="speed", origin="deepspeed"
    )


@frozen
class CheckpointWritingSection:
    """How checkpoints are written, and further steps to save at."""

    checkpoint: CheckpointBlock = setting(
        CheckpointBlock(), help="Block of checkpoint settings.", changes="output", origin="deepspeed"
    )
    extra_save_iters: tuple[int, ...] = setting(
        (),
        help="Steps to save at besides those of save-interval; 0: before the first.",
        unit="steps",
        check=_steps,
        changes="output",
        origin="gpt-neox",
    )

"""DeepSpeed's block of checkpoints, which every engine has: most of it asks for what neox does anyway."""

from typing import Any, Literal

from attrs import frozen

from neox_core.config.schema.setting import setting

TagValidation = Literal["Ignore", "Warn", "Fail", "ignore", "warn", "fail", "IGNORE", "WARN", "FAIL"]


def _deepspeed(default: Any, *, help: str, changes: Literal["speed", "output"] = "output") -> Any:
    return setting(default, help=help, changes=changes, origin="deepspeed")


@frozen
class ParallelWriteBlock:
    """Who writes a checkpoint."""

    pipeline_stage: bool = _deepspeed(
        False,
        help="Let data-parallel ranks share the writing of a stage's layers: neox always does this.",
        changes="speed",
    )


@frozen
class CheckpointBlock:
    """How checkpoints are written and read."""

    tag_validation: TagValidation = _deepspeed(
        "Warn",
        help="What to do when ranks name a checkpoint differently. This cannot happen: a run stops "
        "at the start when ranks find different checkpoints.",
    )
    load_universal: bool = _deepspeed(
        False,
        help="Load on another number of ranks than wrote the checkpoint: every checkpoint allows this.",
    )
    use_node_local_storage: bool = _deepspeed(
        False,
        help="Save on a local disk of the host: for runs on one host.",
    )
    background: bool | None = setting(
        None,
        help="Write checkpoints while training continues, from a copy in memory (Linux). Unset: where a rank "
        "stores 256 MiB or more, and the copies need at most half of the memory that is free.",
        changes="speed",
        aliases=("async",),
    )
    parallel_write: ParallelWriteBlock = _deepspeed(
        ParallelWriteBlock(), help="Block: who writes a checkpoint.", changes="speed"
    )


@frozen
class CheckpointBlockSection:
    """How checkpoints are written."""

    checkpoint: CheckpointBlock = _deepspeed(CheckpointBlock(), help="Block of checkpoint settings.")

"""How long a run is, how large its batch, and how often it validates and logs."""

from typing import Any, Literal

from attrs import frozen

from neox_core.config.schema.checks import above, at_least, between
from neox_core.config.schema.setting import setting


def _size(*, help: str, **more: Any) -> Any:
    return setting(None, help=help, check=above(0), origin="deepspeed", **more)


def _interval(default: int | None, *, help: str) -> Any:
    return setting(default, help=help, unit="steps", check=above(0), changes="output", origin="megatron")


@frozen
class BatchSection:
    """train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data-parallel ranks.

    One or two of the three are enough; the rest follows.
    """

    train_batch_size: int | None = _size(help="Samples of one optimizer step, all ranks.", unit="samples")
    train_micro_batch_size_per_gpu: int | None = _size(
        help="Samples of one forward and backward pass of one rank.", unit="samples", aliases=("train_step_batch_size",)
    )
    gradient_accumulation_steps: int | None = _size(
        help="Passes whose gradients make one step. Default: derived from the other two, else 1."
    )
    rampup_batch_size: tuple[int, int, int] | None = setting(
        None,
        help="Batch-size warm-up: size of the first step, of each growth, and samples until it has train_batch_size.",
        unit="samples",
        origin="megatron",
    )


@frozen
class TrainingSection:
    """Lengths and intervals, in optimizer steps."""

    train_iters: int = setting(
        help="Steps of the whole training, earlier runs included.", unit="steps", check=above(0), origin="megatron"
    )
    exit_interval: int | None = _interval(None, help="Save and exit when the step is a multiple of this.")
    eval_interval: int = _interval(1000, help="Steps between validations.")
    eval_iters: int = setting(
        100,
        help="Batches of a validation; 0 switches validation off.",
        unit="batches",
        check=at_least(0),
        changes="output",
        origin="megatron",
    )
    log_interval: int = _interval(100, help="Steps between log lines.")
    seed: int = setting(
        1234,
        help="Seed of the initial weights, dropout and the order of the data.",
        check=between(1, 2**32 - 1),
        origin="megatron",
    )
    on_nonfinite_loss: Literal["stop", "skip"] = setting(
        "stop",
        help="Stop the run at a loss or gradient that is not finite, or leave out that step. "
        "In fp16 a step whose gradient overflows is always left out.",
        changes="output",
    )
    max_skipped_steps: int = setting(
        40,
        help="Skipped steps in a row after which the run ends with an error. Finding the loss scale of fp16 "
        "takes about 20.",
        unit="steps",
        check=at_least(1),
        changes="output",
    )
    peak_tflops: float | None = setting(
        None,
        help="Peak of one device that MFU is measured against. Default: known devices, else no MFU.",
        unit="TFLOP/s",
        check=above(0),
        changes="output",
    )
    sample_prompt: str | None = setting(
        None, help="Text that the trained model continues at the end of the run.", changes="output"
    )

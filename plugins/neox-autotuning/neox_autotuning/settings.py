"""The block `autotuning`, as in DeepSpeed's documents."""

from typing import Any, Literal

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting


def _setting(default: Any, *, help: str, check: Any = None, unit: str = "", changes: Any = "speed") -> Any:
    return setting(default, help=help, check=check, unit=unit, changes=changes, origin="deepspeed")


@frozen
class AutotuningBlock:
    """What `neox tune` tries, and how long."""

    enabled: bool = _setting(False, help="To be searched: `neox tune` does it, and `neox train` refuses to start.")
    results_dir: str = _setting(
        "autotuning_results",
        help="Folder of the results; unset: of this name, in the folder of the run.",
        changes="output",
    )
    exps_dir: str = _setting(
        "autotuning_exps", help="Folder of the trials' descriptions; unset: as for results_dir.", changes="output"
    )
    overwrite: bool = _setting(False, help="Repeat trials whose results are there already.", changes="output")
    metric: Literal["latency", "throughput", "FLOPS"] = _setting(
        "throughput", help="What to make best: seconds of a step, samples a second, FLOPS of a device."
    )
    start_profile_step: int = _setting(3, unit="steps", check=v.gt(0), help="First step that is measured.")
    end_profile_step: int = _setting(5, unit="steps", check=v.gt(0), help="Last one, after which a trial ends.")
    fast: bool = _setting(True, help="Try micro-batches and ZeRO stages only; else other keys of ZeRO too.")
    max_train_batch_size: int | None = _setting(
        None, unit="samples", check=v.optional(v.gt(0)), help="Largest batch of all ranks to try."
    )
    mp_size: int = _setting(1, unit="ranks", check=v.gt(0), help="Ranks that share a model: model-parallel-size.")
    num_tuning_micro_batch_sizes: int = _setting(3, check=v.gt(0), help="Micro-batch sizes to try for each stage.")
    tuner_type: Literal["gridsearch", "random", "model_based"] = _setting(
        "model_based", help="In which order other keys of ZeRO are tried: fast: false."
    )
    tuner_early_stopping: int = _setting(
        5, unit="trials", check=v.gt(0), help="Trials of a stage in a row without progress, after which it is left."
    )
    tuner_num_trials: int = _setting(50, unit="trials", check=v.gt(0), help="Most trials of a stage.")
    arg_mappings: dict[str, str] | None = _setting(
        None, help="Block: keys that are tried, each with another key of the config that gets the same value."
    )


@frozen
class AutotuningSettings:
    autotuning: AutotuningBlock = _setting(AutotuningBlock(), help="Block of the search for the fastest setting.")

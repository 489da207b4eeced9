"""The block `autotuning`, as in DeepSpeed's documents."""

from typing import Any, Literal

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting


def _setting(default: Any, *, help: str, check: Any = None, unit: str = "", changes: Any = "speed") -> Any:
    return setting(default, help=help, check=check, unit=unit, changes=changes, origin="deepspeed")


@frozen
class AutotuningBlock:
    """What `neox tune` tries, and for how many steps."""

    enabled: bool = _setting(False, help="Search this config with `neox tune`; `neox train` then refuses to start.")
    results_dir: str = _setting(
        "autotuning_results",
        help="Folder of the results. Default: autotuning_results in the folder of the run.",
        changes="output",
    )
    exps_dir: str = _setting(
        "autotuning_exps",
        help="Folder of the trials' settings. Default: autotuning_exps in the folder of the run.",
        changes="output",
    )
    overwrite: bool = _setting(False, help="Repeat trials that have results already.", changes="output")
    metric: Literal["latency", "throughput", "FLOPS"] = _setting(
        "throughput", help="What to optimise: seconds of a step, samples a second, FLOPS of a device."
    )
    start_profile_step: int = _setting(3, unit="steps", check=v.gt(0), help="First measured step.")
    end_profile_step: int = _setting(
        5, unit="steps", check=v.gt(0), help="Last measured step, after which a trial ends."
    )
    fast: bool = _setting(True, help="Try only micro-batches and ZeRO stages; false: also other keys of ZeRO.")
    max_train_batch_size: int | None = _setting(
        None, unit="samples", check=v.optional(v.gt(0)), help="Largest batch of all ranks to try."
    )
    mp_size: int = _setting(1, unit="ranks", check=v.gt(0), help="Must equal model-parallel-size.")
    num_tuning_micro_batch_sizes: int = _setting(3, check=v.gt(0), help="Micro-batch sizes to try for each stage.")
    tuner_type: Literal["gridsearch", "random", "model_based"] = _setting(
        "model_based", help="Order in which other keys of ZeRO are tried, with fast: false."
    )
    tuner_early_stopping: int = _setting(
        5, unit="trials", check=v.gt(0), help="Trials in a row without progress after which a stage ends."
    )
    tuner_num_trials: int = _setting(50, unit="trials", check=v.gt(0), help="Largest number of trials of a stage.")
    arg_mappings: dict[str, str] | None = _setting(
        None, help="Block: for keys that are tried, another key of the config that gets the same value."
    )


@frozen
class AutotuningSettings:
    autotuning: AutotuningBlock = _setting(AutotuningBlock(), help="Block of the search for the fastest setting.")

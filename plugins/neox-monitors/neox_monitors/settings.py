"""Blocks of settings, one a monitor. `enabled` of a settings class says whether its block switches the monitor on."""

from typing import Literal

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting


@frozen
class TensorBoardBlock:
    """Event files for TensorBoard."""

    enabled: bool = setting(False, help="Write event files.", changes="output", origin="deepspeed")
    output_path: str | None = setting(
        None, help="Folder around job_name. Default: where the run is started.", changes="output", origin="deepspeed"
    )
    job_name: str = setting("DeepSpeedJobName", help="Folder of the event files.", changes="output", origin="deepspeed")


@frozen
class TensorBoardSettings:
    tensorboard: TensorBoardBlock = setting(
        TensorBoardBlock(), help="Block of the monitor for TensorBoard.", changes="output", origin="deepspeed"
    )
    tensorboard_dir: str | None = setting(
        None, help="Write event files for TensorBoard to this very folder.", changes="output", origin="gpt-neox"
    )

    @property
    def enabled(self) -> bool:
        return self.tensorboard.enabled or self.tensorboard_dir is not None


@frozen
class CsvBlock:
    """A CSV file for each value."""

    enabled: bool = setting(False, help="Write CSV files.", changes="output", origin="deepspeed")
    output_path: str | None = setting(
        None, help="Folder around job_name. Default: where the run is started.", changes="output", origin="deepspeed"
    )
    job_name: str = setting("DeepSpeedJobName", help="Folder of the CSV files.", changes="output", origin="deepspeed")


@frozen
class CsvSettings:
    csv_monitor: CsvBlock = setting(
        CsvBlock(), help="Block of the monitor for CSV files.", changes="output", origin="deepspeed"
    )

    @property
    def enabled(self) -> bool:
        return self.csv_monitor.enabled


@frozen
class WandbBlock:
    """Weights & Biases."""

    enabled: bool = setting(False, help="Send values to Weights & Biases.", changes="output", origin="deepspeed")
    group: str | None = setting(None, help="Group of runs.", changes="output", origin="deepspeed")
    team: str | None = setting(
        None,
        help="Team that the run belongs to. Default: the account's.",
        changes="output",
        origin="deepspeed",
    )
    project: str = setting("deepspeed", help="Project of the run.", changes="output", origin="deepspeed")


@frozen
class WandbSettings:
    wandb: WandbBlock = setting(
        WandbBlock(), help="Block of the monitor for Weights & Biases.", changes="output", origin="deepspeed"
    )

    @property
    def enabled(self) -> bool:
        return self.wandb.enabled


@frozen
class CometBlock:
    """Comet."""

    enabled: bool = setting(False, help="Send values to Comet.", changes="output", origin="deepspeed")
    workspace: str | None = setting(
        None, help="Workspace. Default: the account's.", changes="output", origin="deepspeed"
    )
    project: str | None = setting(None, help="Project. Default: Comet's.", changes="output", origin="deepspeed")
    samples_log_interval: int = setting(
        100,
        help="Samples between two values of one name; those in between are left out.",
        unit="samples",
        check=v.gt(0),
        changes="output",
        origin="deepspeed",
    )
    experiment_name: str | None = setting(
        None, help="Name of the experiment. Default: one of Comet's.", changes="output", origin="deepspeed"
    )
    api_key: str | None = setting(
        None,
        help="Refused in a config, which is copied and shared: set COMET_API_KEY in the environment.",
        changes="output",
        origin="deepspeed",
        secret=True,
    )
    experiment_key: str | None = setting(
        None,
        help="Key of the experiment, 32 to 50 letters and digits. Default: a new one.",
        check=v.optional(v.matches_re(r"[A-Za-z0-9]{32,50}")),
        changes="output",
        origin="deepspeed",
    )
    online: bool | None = setting(
        None,
        help="false: into an archive on disk, to be uploaded later. Default: true.",
        changes="output",
        origin="deepspeed",
    )
    mode: Literal["get", "create", "get_or_create"] | None = setting(
        None,
        help="Continue the experiment of experiment_key, begin one, or either. Default: get_or_create.",
        changes="output",
        origin="deepspeed",
    )


@frozen
class CometSettings:
    comet: CometBlock = setting(
        CometBlock(), help="Block of the monitor for Comet.", changes="output", origin="deepspeed"
    )

    @property
    def enabled(self) -> bool:
        return self.comet.enabled

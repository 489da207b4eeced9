"""Blocks of settings, one a monitor. `enabled` of a settings class says whether its block switches the monitor on."""

from typing import Any, Literal

from attrs import Factory, frozen
from attrs import validators as v

from neox_core.api import setting


def _output(default: Any, *, help: str, **more: Any) -> Any:
    """A setting of DeepSpeed's documents; none of a monitor changes what is computed."""
    return setting(default, help=help, changes="output", origin="deepspeed", **more)


@frozen
class TensorBoardBlock:
    """Event files for TensorBoard."""

    enabled: bool = _output(False, help="Write event files.")
    output_path: str | None = _output(None, help="Folder around job_name. Default: that of the run.")
    job_name: str = _output("DeepSpeedJobName", help="Folder of the event files.")


@frozen
class TensorBoardSettings:
    tensorboard: TensorBoardBlock = _output(TensorBoardBlock(), help="Block of the monitor for TensorBoard.")
    tensorboard_dir: str | None = setting(
        None, help="Write event files for TensorBoard to this very folder.", changes="output", origin="gpt-neox"
    )

    @property
    def enabled(self) -> bool:
        """Whether the config asks for it."""
        return self.tensorboard.enabled or self.tensorboard_dir is not None


@frozen
class CsvBlock:
    """A CSV file for each value."""

    enabled: bool = _output(False, help="Write CSV files.")
    output_path: str | None = _output(None, help="Folder around job_name. Default: that of the run.")
    job_name: str = _output("DeepSpeedJobName", help="Folder of the CSV files.")


@frozen
class CsvSettings:
    csv_monitor: CsvBlock = _output(CsvBlock(), help="Block of the monitor for CSV files.")

    @property
    def enabled(self) -> bool:
        """Whether the config asks for it."""
        return self.csv_monitor.enabled


@frozen
class WandbBlock:
    """Weights & Biases."""

    enabled: bool = _output(False, help="Send values to Weights & Biases.")
    group: str | None = _output(None, help="Group of runs.")
    team: str | None = _output(None, help="Team that the run belongs to. Default: the account's.")
    project: str = _output("deepspeed", help="Project of the run.")


@frozen
class WandbSettings:
    wandb: WandbBlock = _output(WandbBlock(), help="Block of the monitor for Weights & Biases.")

    @property
    def enabled(self) -> bool:
        """Whether the config asks for it."""
        return self.wandb.enabled


@frozen
class CometBlock:
    """Comet."""

    enabled: bool = _output(False, help="Send values to Comet.")
    workspace: str | None = _output(None, help="Workspace. Default: the account's.")
    project: str | None = _output(None, help="Project. Default: Comet's.")
    samples_log_interval: int = _output(
        100,
        help="Samples between two values of one name; those in between are left out.",
        unit="samples",
        check=v.gt(0),
    )
    experiment_name: str | None = _output(None, help="Name of the experiment. Default: one of Comet's.")
    tags: tuple[str, ...] = _output((), help="Tags of the experiment.")
    others: dict[str, Any] = _output(Factory(dict), help="Further values that describe the experiment, by name.")
    api_key: str | None = _output(
        None, help="Refused in a config, which is copied and shared: set COMET_API_KEY in the environment.", secret=True
    )
    experiment_key: str | None = _output(
        None,
        help="Key of the experiment, 32 to 50 letters and digits. Default: a new one.",
        check=v.optional(v.matches_re(r"[A-Za-z0-9]{32,50}")),
    )
    online: bool | None = _output(None, help="false: into an archive on disk, to be uploaded later. Default: true.")
    mode: Literal["get", "create", "get_or_create"] | None = _output(
        None, help="Continue the experiment of experiment_key, begin one, or either. Default: get_or_create."
    )


@frozen
class CometSettings:
    comet: CometBlock = _output(CometBlock(), help="Block of the monitor for Comet.")

    @property
    def enabled(self) -> bool:
        """Whether the config asks for it."""
        return self.comet.enabled

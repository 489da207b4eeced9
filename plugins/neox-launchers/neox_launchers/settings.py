"""Settings of the launchers: top-level keys of a config."""

from typing import Any

from attrs import frozen

from neox_core.api import setting


def _no_option(instance: Any, field: Any, value: str | None) -> None:
    if value is not None and (not value or value.startswith("-")):
        raise ValueError("must be a text that does not begin with -")


@frozen
class LauncherSettings:
    log_dir: str | None = setting(
        None,
        help="Folder for rank<N>.log, the output of each rank. Default: `logs` in the folder of the run.",
        changes="output",
        origin="gpt-neox",
    )


def _srun(help: str) -> Any:
    return setting(None, help=help, check=_no_option, changes="output", origin="gpt-neox")


@frozen
class SlurmSettings(LauncherSettings):
    comment: str | None = _srun("Comment on the job step, given to srun.")
    account: str | None = _srun("Account that the job step is charged to, given to srun.")

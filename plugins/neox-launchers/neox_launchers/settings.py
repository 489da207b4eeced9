"""Settings of the launchers: top-level keys of a config."""

from attrs import frozen

from neox_core.api import setting


@frozen
class LauncherSettings:
    log_dir: str | None = setting(
        None,
        help="Folder for rank<N>.log, the output of each rank. Default: `logs` in the folder of the run.",
        changes="output",
        origin="gpt-neox",
    )

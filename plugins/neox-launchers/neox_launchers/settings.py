"""Settings of the launchers: top-level keys of a config."""

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting


@frozen
class LauncherSettings:
    log_dir: str | None = setting(
        None,
        help="Folder for rank<N>.log, the output of each rank. Default: `logs` in the folder of the run.",
        changes="output",
        origin="gpt-neox",
    )
    meet_timeout: int = setting(
        600,
        help="Time for all hosts, then for all ranks, to find each other.",
        unit="s",
        check=v.ge(1),
        changes="output",
    )
    host_timeout: int = setting(
        60,
        help="Time without a sign of life of a host after which the run ends and names it.",
        unit="s",
        check=v.ge(1),
        changes="output",
    )
    end_timeout: int = setting(
        60,
        help="Time that the hosts have to end after the first failure; then the command ends by itself.",
        unit="s",
        check=v.ge(1),
        changes="output",
    )

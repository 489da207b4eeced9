"""The hosts of the Slurm allocation in which `neox train` runs. Light: runs on the host."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping

from neox_core.config.problem import MisfitError

ANSWER_S = 10
_TASKS = re.compile(r"(?P<tasks>\d{1,6})(\(x(?P<times>\d{1,6})\))?")


def allocation(device: str, num_gpus: int) -> dict[str, tuple[int, ...]]:
    """Host -> slots; {} outside of an allocation.

    The slots of a host are its GPUs, unless device is "cpu"; else the tasks that were asked for; else num_gpus, or 1.
    Raises MisfitError where Slurm does not say which hosts there are.
    """
    listed = os.environ.get("SLURM_JOB_NODELIST", "")
    if not listed:
        return {}
    try:
        command = ["scontrol", "show", "hostnames", listed]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=ANSWER_S).stdout
    except (OSError, subprocess.SubprocessError) as error:
        message = f"is slurm, and `scontrol show hostnames` does not say which hosts {listed} are: {error}"
        raise MisfitError(message, "launcher", "write them into a hostfile") from None
    hosts = said.split()
    return {
        host: tuple(range(slots))
        for host, slots in zip(hosts, _slots(os.environ, len(hosts), device, num_gpus), strict=True)
    }


def _slots(environ: Mapping[str, str], hosts: int, device: str, num_gpus: int) -> list[int]:
    """Of each host. Slurm gives the tasks of each host as `2(x3),1`."""
    gpus, each = environ.get("SLURM_GPUS_ON_NODE", ""), environ.get("SLURM_NTASKS_PER_NODE", "")
    if device != "cpu" and gpus.isdecimal() and int(gpus):
        return [int(gpus)] * hosts
    if each.isdecimal() and int(each):
        return [int(each)] * hosts
    if "SLURM_NTASKS" in environ:
        found: list[int] = []
        for match in filter(None, map(_TASKS.fullmatch, environ.get("SLURM_TASKS_PER_NODE", "").split(","))):
            found += [int(match["tasks"])] * min(int(match["times"] or 1), hosts)
        if len(found) == hosts and all(found):
            return found
    return [max(1, num_gpus)] * hosts

"""Several ranks of a machine, or of several machines, by torch's elastic agent. Imports torch."""

from __future__ import annotations

import os
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from neox_launchers.failure import SHUTDOWN_S, Exit
from neox_launchers.ranks import command, new_log
from neox_launchers.stall import Rank

if TYPE_CHECKING:
    from neox_core.plan.runfile import ClusterPlan
    from neox_launchers.meeting import Meeting

BARRIER_S = 60
"""For the ranks of other hosts to end after those of this one have."""


class RankLogs(LogsSpecs):
    """stderr of each rank to LOG_DIR/rank<N>.log, the log of the run before kept as rank<N>.log.1.

    stdout of rank 0 stays what it is, so that its progress bar sees a terminal; the other ranks put theirs into the
    log themselves.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(log_dir=str(folder))
        self.folder = folder

    @property
    def root_log_dir(self) -> str:
        """The folder of the logs."""
        return str(self.folder)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Where each local rank writes. envs: the environment of each, with its RANK."""
        files = {local_rank: str(new_log(self.folder, int(env["RANK"]))) for local_rank, env in envs.items()}
        none = dict.fromkeys(files, "")
        return LogsDest(stdouts=none, stderrs=files, error_files=dict(none))


class TorchAgent(LocalElasticAgent):
    """torch's agent as a `ranks.Agent`."""

    def exits(self) -> list[Exit]:
        failures = self.run().failures
        return [Exit(rank, failure.exitcode, failure.timestamp) for rank, failure in failures.items()]

    def failed(self) -> bool:
        return any(code not in (None, 0) for code in self._codes())

    def over(self) -> bool:
        codes = self._codes()
        return bool(codes) and not any(code != 0 for code in codes)

    def _codes(self) -> list[int | None]:
        running = getattr(self._pcontext, "subprocess_handlers", None) or {}
        return [each.proc.returncode for each in running.values()]

    def ranks(self) -> list[Rank]:
        workers = [each for each in self.get_worker_group().workers if each.id]
        return [Rank(each.global_rank, each.local_rank, int(each.id)) for each in workers]


def torch_agent(cluster: ClusterPlan, run_file: Path, log_dir: Path, port: int, meeting: Meeting | None) -> TorchAgent:
    """meeting: with the other hosts of the plan, where there are some."""
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"  # its way with the others kills data workers too
    host, address, rank = cluster.hosts[meeting.node if meeting else 0], cluster.master_addr, command(run_file)
    spec = WorkerSpec(
        role="rank",
        local_world_size=host.slots,
        entrypoint=rank[0],
        args=rank[1:],
        rdzv_handler=meeting or StaticTCPRendezvous(address, port, 0, 1, f"neox-{os.getpid()}", timeout=60),
        max_restarts=0,
        monitor_interval=0.1,
        master_addr=address,
        master_port=port,
        local_addr=meeting.hosts[meeting.node] if meeting else address,
    )
    known = signature(LocalElasticAgent).parameters  # torch 2.11 cannot be told, and gives the ranks 30 s
    patience = {"shutdown_timeout": SHUTDOWN_S} if "shutdown_timeout" in known else {}
    return TorchAgent(spec, RankLogs(log_dir), exit_barrier_timeout=BARRIER_S, **patience)

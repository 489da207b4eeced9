"""`python -m neox_launchers.elastic RUN_FILE LOG_DIR`: start the ranks of this machine and watch them.

torch's elastic agent starts one process a rank, notices the first that fails and stops the others. On top of that:
SIGINT and SIGTERM reach each rank once and leave its data workers alone, a rank's errors go to LOG_DIR/rank<N>.log, and
of a failure `failure.json` is written. Exit code 0 when every rank ended well, else 1.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from neox_core.errors import run_main
from neox_core.plan.runfile import ClusterPlan, read_runfile
from neox_launchers.failure import Exit, clear_failures, write_failure

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SHUTDOWN_S = 20


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
        return str(self.folder)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        self.folder.mkdir(parents=True, exist_ok=True)
        files = {local_rank: self.folder / f"rank{env['RANK']}.log" for local_rank, env in envs.items()}
        for file in files.values():
            if file.exists():
                file.replace(file.with_name(f"{file.name}.1"))
        none = dict.fromkeys(files, "")
        return LogsDest(stdouts=none, stderrs={rank: str(file) for rank, file in files.items()}, error_files=dict(none))


def main() -> int:
    run_file, log_dir = Path(sys.argv[1]), Path(sys.argv[2])
    plan = read_runfile(run_file)
    if not plan.debug:
        logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"  # its way with the others kills data workers too
    clear_failures(run_file.parent)
    agent = _agent(plan.cluster, run_file, log_dir)
    _pass_signals_on(agent)
    result = agent.run()
    if not result.is_failed():
        return 0
    exits = [Exit(rank, failure.exitcode, failure.timestamp) for rank, failure in result.failures.items()]
    write_failure(run_file.parent, exits, log_dir, killed_after=SHUTDOWN_S)
    return 1


def _agent(cluster: ClusterPlan, run_file: Path, log_dir: Path) -> LocalElasticAgent:
    address, port = cluster.master_addr or "127.0.0.1", _free_port(cluster.master_port)
    rendezvous = RendezvousParameters(
        backend="static",
        endpoint=f"{address}:{port}",
        run_id=f"neox-{os.getpid()}",
        min_nodes=1,
        max_nodes=1,
        local_addr=address,
        rank=0,
        timeout=60,
    )
    spec = WorkerSpec(
        role="rank",
        local_world_size=cluster.world_size,
        entrypoint=sys.executable,
        args=("-m", "neox_core.train.rank", str(run_file)),
        rdzv_handler=get_rendezvous_handler(rendezvous),
        max_restarts=0,
        monitor_interval=0.1,
        master_addr=address,
        master_port=port,
        local_addr=address,
    )
    return LocalElasticAgent(spec, RankLogs(log_dir), exit_barrier_timeout=5, shutdown_timeout=SHUTDOWN_S)


def _free_port(wanted: int) -> int:
    """`wanted`, or any free port when it is taken: all ranks are here, so nobody else has to know it."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    return wanted


def _pass_signals_on(agent: LocalElasticAgent) -> None:
    """Ask every rank to stop when this process is asked to, or when the process that started it is gone."""

    def pass_on(signum: int, frame: FrameType | None) -> None:
        for worker in agent.get_worker_group().workers:
            if worker.id:
                try:
                    os.kill(int(worker.id), signal.SIGTERM)
                except ProcessLookupError:
                    continue  # it has ended already

    def follow_parent(parent: int) -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    for signum in STOP_SIGNALS:
        signal.signal(signum, pass_on)
    threading.Thread(target=follow_parent, args=(os.getppid(),), daemon=True).start()


if __name__ == "__main__":
    run_main(main)

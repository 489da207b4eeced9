"""`python -m neox_launchers.elastic RUN_FILE LOG_DIR [NODE | mpi | slurm]`: start the ranks of this machine, and watch.

torch's elastic agent starts one process a rank, notices the first that fails and stops the others. On top of that:
SIGINT and SIGTERM reach each rank once and leave its data workers alone, a rank's errors go to LOG_DIR/rank<N>.log, and
of a failure `failure.json` is written. Exit code 0 when every rank ended well, else 1.

With NODE this is one of several hosts of the plan: node<NODE>.json in the folder of the run tells the first machine
how its ranks ended, `stop` there asks it to stop them, and stdin ends when the first machine is gone. With `mpi`
the number is that of mpirun, with `slurm` that of the host of this name; not stdin but their daemon on this host, the
parent, has to be there.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from inspect import signature
from pathlib import Path
from types import FrameType

from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from neox_core.errors import UsageError, run_main
from neox_core.heartbeat import VARIABLE, Heartbeats
from neox_core.interpreter import python
from neox_core.plan.runfile import DIGEST, ClusterPlan, RunPlan, read_runfile
from neox_launchers.environment import visible_devices
from neox_launchers.failure import FAILED, SHUTDOWN_S, STOP, Exit, clear_failures, telling, write_exits, write_failure
from neox_launchers.nvlink import read_topology
from neox_launchers.stall import Rank, StallWatch

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
    by = sys.argv[3] if len(sys.argv) > 3 else None
    plan = _read(run_file, shared=by is not None)
    node = _number(by, [host.name for host in plan.cluster.hosts]) if by else None
    host = plan.cluster.hosts[node or 0]
    topology = read_topology() if plan.cluster.nvlink_pairs else None
    os.environ.update(visible_devices(host, os.environ, topology))
    if not plan.debug:
        logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    os.environ["NEOX_AGENT"] = str(os.getpid())
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"  # its way with the others kills data workers too
    if node is None:
        clear_failures(run_file.parent)
    beats = Heartbeats(host.slots)
    os.environ[VARIABLE] = beats.path
    agent = _agent(plan.cluster, run_file, log_dir, node)
    local, save = plan.checkpoint.save_folder, plan.checkpoint.save
    alone = len(plan.cluster.hosts) == 1
    stalls = StallWatch(partial(_ranks, agent), beats, run_file.parent, log_dir, Path(local) if local else save, alone)
    _pass_signals_on(agent, stalls)
    threading.Thread(target=stalls.follow, daemon=True).start()
    if by and by.isdecimal():
        _watch(_follow_stdin, agent)
    else:  # which a daemon on this host has started, else `neox train` itself
        _watch(_follow_parent, agent, None if by else os.environ.get("NEOX_SUPERVISOR"))
    if node is not None:
        _watch(_follow_request, agent, run_file.parent / STOP)
    result = agent.run()
    exits = [Exit(rank, failure.exitcode, failure.timestamp) for rank, failure in result.failures.items()]
    if node is not None:
        write_exits(run_file.parent, node, exits)
    elif result.is_failed():
        write_failure(run_file.parent, exits, log_dir, killed_after=SHUTDOWN_S)
    return 1 if result.is_failed() else 0


def _number(by: str, hosts: list[str]) -> int:
    """Which host of the plan this is; Open MPI and Hydra give the number in the environment, Slurm the name."""
    if by.isdecimal():
        return int(by)
    if by == "slurm":
        name = os.environ.get("SLURMD_NODENAME", socket.gethostname())
        if name not in hosts:
            raise UsageError(
                f"Slurm has started an agent on {name}, and the hosts of the plan are {', '.join(hosts)}",
                hint="write the hostfile with the names that `scontrol show hostnames` prints",
            )
        return hosts.index(name)
    found = [os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ]
    if not found:
        raise UsageError("mpirun does not say which of its processes this is", hint="launcher: pdsh")
    return int(found[0])


def _read(run_file: Path, *, shared: bool) -> RunPlan:
    if shared and not run_file.exists():
        raise UsageError(
            f"{socket.gethostname()} does not see {run_file.absolute()}",
            hint="put the folder of the run on a file system that all hosts share",
        )
    return read_runfile(run_file, os.environ.get(DIGEST))


def _agent(cluster: ClusterPlan, run_file: Path, log_dir: Path, node: int | None) -> LocalElasticAgent:
    alone = node is None
    host = cluster.hosts[node or 0]
    port = _free_port(cluster.master_port, any_other=alone) if not node else cluster.master_port
    rendezvous = RendezvousParameters(
        backend="static",
        endpoint=f"{cluster.master_addr}:{port}",
        run_id=f"neox-{os.getpid()}" if alone else "neox",
        min_nodes=1 if alone else len(cluster.hosts),
        max_nodes=1 if alone else len(cluster.hosts),
        local_addr=cluster.master_addr if alone else host.name,
        rank=node or 0,
        timeout=60,
    )
    rank = python("neox_core.run.rank", str(run_file))
    spec = WorkerSpec(
        role="rank",
        local_world_size=host.slots,
        entrypoint=rank[0],
        args=rank[1:],
        rdzv_handler=get_rendezvous_handler(rendezvous),
        max_restarts=0,
        monitor_interval=0.1,
        master_addr=cluster.master_addr,
        master_port=port,
        local_addr=cluster.master_addr if alone else host.name,
    )
    known = signature(LocalElasticAgent).parameters  # torch 2.11 cannot be told, and gives the ranks 30 s
    patience = {"shutdown_timeout": SHUTDOWN_S} if "shutdown_timeout" in known else {}
    return LocalElasticAgent(spec, RankLogs(log_dir), exit_barrier_timeout=5, **patience)


def _free_port(wanted: int, *, any_other: bool) -> int:
    """`wanted`; when it is taken another free port, if no other host has to know it, else UsageError."""
    for port in (wanted, 0) if any_other else (wanted,):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    if any_other:
        return wanted
    raise UsageError(f"port {wanted} of {socket.gethostname()} is taken", hint="set `master_port` to a free one")


def _ranks(agent: LocalElasticAgent) -> list[Rank]:
    """Those that were started."""
    workers = [each for each in agent.get_worker_group().workers if each.id]
    return [Rank(each.global_rank, each.local_rank, int(each.id)) for each in workers]


def _pass_signals_on(agent: LocalElasticAgent, stalls: StallWatch) -> None:
    """Ask every rank to stop, once for each time that this process is asked to; those to come, as soon as they are."""

    def pass_on(signum: int, frame: FrameType | None) -> None:
        ranks = _ranks(agent)
        if not ranks:
            again = threading.Timer(0.2, os.kill, (os.getpid(), signum))
            again.daemon = True
            again.start()
        for rank in ranks:
            stalls.asked = True
            with suppress(ProcessLookupError):  # it has ended already
                os.kill(rank.pid, signal.SIGTERM)

    for signum in STOP_SIGNALS:
        signal.signal(signum, pass_on)


def _watch(follow: Callable[..., None], *args: object) -> None:
    threading.Thread(target=follow, args=args, daemon=True).start()


def _follow_parent(agent: LocalElasticAgent, starter: str | None) -> None:
    """Stop the ranks when the process that started this one is gone, which may be before this one can look."""
    parent = os.getppid()
    while os.getppid() == parent and (starter is None or _is_there(int(starter))):
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _follow_stdin(agent: LocalElasticAgent) -> None:
    """Stop the ranks and exit when the connection to the first machine is gone."""
    while os.read(0, 4096):
        continue
    os.kill(os.getpid(), signal.SIGTERM)
    _leave_later(agent)


def _follow_request(agent: LocalElasticAgent, request: Path) -> None:
    """Stop the ranks when asked to: without a time limit, unless a host has failed."""
    while not request.exists():
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    while request.read_text(encoding="utf-8") != FAILED:
        time.sleep(0.2)
    _leave_later(agent)


def _leave_later(agent: LocalElasticAgent) -> None:
    """End this process when the ranks have had their time; one that is still there leaves with its parent."""
    deadline = time.monotonic() + SHUTDOWN_S
    while time.monotonic() < deadline and any(worker.id for worker in agent.get_worker_group().workers):
        time.sleep(0.2)
    os._exit(1)


if __name__ == "__main__":
    alone = len(sys.argv) == 3  # else the first machine hears it, in hosts.log
    run_main((lambda: telling(main, Path(sys.argv[1]).parent)) if alone else main)

"""`python -m neox_launchers.elastic RUN_FILE LOG_DIR [NODE | mpi | slurm]`: start the ranks of this machine, and watch.

torch's elastic agent starts one process a rank, notices the first that fails and stops the others; where a run has one
rank it is started without torch, whose import takes a second. On top of that: SIGINT and SIGTERM
reach each rank once and leave its data workers alone, a rank's errors go to LOG_DIR/rank<N>.log, and of a failure
`failure.json` is written. Exit code 0 when every rank ended well, else 1.

With NODE this is one of several hosts of the plan: it meets the others (`meeting`) and hears of them (`neighbours`),
node<NODE>.json in the folder of the run tells how its ranks ended, and stdin ends when the machine that started it is
gone. With `mpi` the number is that of mpirun, with `slurm` that of the host of this name; not stdin but their
daemon on this host, the parent, has to be there.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from attrs import define, evolve

from neox_core.errors import UsageError, run_main
from neox_core.files import allow_many_files
from neox_core.heartbeat import VARIABLE, Heartbeats
from neox_core.interpreter import STOP_SIGNALS, start_thread
from neox_core.plan.runfile import RunPlan
from neox_launchers.agents import names, read_plan, settings_of, some
from neox_launchers.contents import contents
from neox_launchers.environment import visible_devices
from neox_launchers.failure import (
    SHUTDOWN_S,
    STOP,
    Exit,
    HostReport,
    clear_failures,
    say_to_first,
    telling,
    write_failure,
    write_report,
)
from neox_launchers.forwarding import read_private
from neox_launchers.nvlink import read_topology
from neox_launchers.ranks import Agent, OneRank
from neox_launchers.stall import Rank, StallWatch

if TYPE_CHECKING:
    from neox_launchers.meeting import Meeting

LOOK_S = 0.2
REPORT_S = 2.0
"""For the agent to notice that its ranks have ended, and to report."""


def main() -> int:
    """Start the ranks of this host, and restart them as torch's elastic agent does; returns the exit code."""
    run_file, log_dir = Path(sys.argv[1]), Path(sys.argv[2])
    by = sys.argv[3] if len(sys.argv) > 3 else None
    plan = read_plan(run_file, shared=by is not None)
    node = _number(by, names(plan)) if by else None
    host = plan.cluster.hosts[node or 0]
    topology = read_topology() if plan.cluster.nvlink_pairs else None
    os.environ.update(visible_devices(host, os.environ, topology))
    allow_many_files()  # that of the first host is connected to all ranks
    os.environ["NEOX_AGENT"] = str(os.getpid())
    if node is None:
        clear_failures(run_file.parent)
    else:
        os.environ.update(read_private(run_file.parent))
        say_to_first("here", str(node))
    beats = Heartbeats(host.slots)
    os.environ[VARIABLE] = beats.path
    asked, cut_off = threading.Event(), threading.Event()
    meeting = None if node is None else _meeting(plan, run_file.parent, node, asked)
    agent = _agent(plan, run_file, log_dir, meeting)
    local, save = plan.checkpoint.save_folder, plan.checkpoint.save
    alone = len(plan.cluster.hosts) == 1
    stalls = StallWatch(agent.ranks, beats, run_file.parent, log_dir, Path(local) if local else save, alone)
    _pass_signals_on(agent, stalls, asked)
    start_thread(stalls.follow, name="neox-stalls")
    if by and by.isdecimal():
        start_thread(_follow_stdin, agent, cut_off, name="neox-parent")
    else:  # which a daemon on this host has started, else `neox train` itself
        start_thread(_follow_parent, None if by else os.environ.get("NEOX_SUPERVISOR"), name="neox-parent")
    if meeting is not None:
        code = _as_one_of_several(agent, meeting, run_file.parent, plan, asked, cut_off)
        sys.stderr.flush()
        os._exit(code)  # the end of the interpreter aborts a thread that is inside a call to the store
    exits = agent.exits()
    if exits:
        write_failure(run_file.parent, exits, log_dir, killed_after=SHUTDOWN_S, asked=asked.is_set())
    return 1 if exits else 0


def _meeting(plan: RunPlan, run_dir: Path, node: int, asked: threading.Event) -> Meeting:
    from neox_launchers.meeting import Meeting, read_token

    cluster = plan.cluster
    port = _free_port(cluster.master_port, any_other=False) if node == 0 else cluster.master_port
    token = read_token(run_dir)
    limit = settings_of(plan).meet_timeout
    os.environ |= {"NEOX_RUN_TOKEN": token, "NEOX_MEET_TIMEOUT_S": str(limit)}
    packages = contents(plan.plugins)
    return Meeting(names(plan), node, cluster.master_addr, port, token, limit, asked, run_dir / STOP, packages)


def _as_one_of_several(
    agent: Agent, meeting: Meeting, run_dir: Path, plan: RunPlan, asked: threading.Event, cut_off: threading.Event
) -> int:
    """Run the ranks, listen to the other hosts, and report how this one ended."""
    from neox_launchers.meeting import StoppedError
    from neox_launchers.neighbours import Neighbours

    ending, reported, writing = Ending(agent), threading.Event(), threading.Lock()
    hosts = Neighbours(
        lambda: meeting.store,
        meeting.node,
        meeting.hosts,
        run_dir,
        settings_of(plan).host_timeout,
        failed=agent.failed,
        over=agent.over,
        ask=partial(os.kill, os.getpid(), signal.SIGTERM),
        end=lambda: ending.begin(report),
    )

    def report(exits: Iterable[Exit] = ()) -> None:
        by_user = asked.is_set() and not cut_off.is_set() and not hosts.told and not hosts.lost
        with writing:  # of the threads that end this process, the first one
            if not reported.is_set():
                write_report(run_dir, HostReport(meeting.node, tuple(exits), by_user, hosts.lost, hosts.broken))
                reported.set()

    hosts.start()
    try:
        exits = agent.exits()
    except StoppedError:
        report()
        return 1
    hosts.finish()
    first = hosts.order if hosts.order is not None else len(meeting.hosts)
    report(evolve(each, host=meeting.node, order=first, ended_at=ending.began) for each in exits)
    return 1 if exits else 0


def _number(by: str, hosts: list[str]) -> int:
    """Which host of the plan this is; Open MPI and Hydra give the number in the environment, Slurm the name."""
    if by.isdecimal():
        return int(by)
    if by == "slurm":
        name = os.environ.get("SLURMD_NODENAME", socket.gethostname())
        if name not in hosts:
            raise UsageError(
                f"Slurm has started an agent on {name}, and the hosts of the plan are {some(hosts)}",
                hint="write the hostfile with the names that `scontrol show hostnames` prints",
            )
        return hosts.index(name)
    found = [os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ]
    if not found:
        raise UsageError("mpirun does not say which of its processes this is", hint="launcher: pdsh")
    return int(found[0])


def _agent(plan: RunPlan, run_file: Path, log_dir: Path, meeting: Meeting | None) -> Agent:
    cluster = plan.cluster
    if meeting is None and cluster.hosts[0].slots == 1:
        return OneRank(run_file, log_dir, cluster.master_addr)
    from neox_launchers.torch_agent import torch_agent  # imports torch

    if not plan.debug:
        logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    port = _free_port(cluster.master_port, any_other=True) if meeting is None else meeting.port
    return torch_agent(cluster, run_file, log_dir, port, meeting)


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


def _pass_signals_on(agent: Agent, stalls: StallWatch, asked: threading.Event) -> None:
    """Ask every rank to stop, once: mpirun and another host may both ask; those to come, as soon as they are there."""
    told: set[int] = set()

    def pass_on(signum: int, frame: FrameType | None) -> None:
        asked.set()
        ranks = agent.ranks()
        if not ranks:
            again = threading.Timer(0.2, os.kill, (os.getpid(), signum))
            again.daemon = True
            again.start()
        stalls.asked |= bool(ranks)
        _send(signal.SIGTERM, [each for each in ranks if each.pid not in told])
        told.update(each.pid for each in ranks)

    for signum in STOP_SIGNALS:
        signal.signal(signum, pass_on)


def _send(signum: signal.Signals, ranks: Iterable[Rank]) -> None:
    for rank in ranks:
        with suppress(ProcessLookupError):  # it has ended already
            os.kill(rank.pid, signum)


def _follow_parent(starter: str | None) -> None:
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


def _follow_stdin(agent: Agent, cut_off: threading.Event) -> None:
    """Stop the ranks and exit when the connection to the first machine is gone."""
    while os.read(0, 4096):
        continue
    cut_off.set()
    Ending(agent).begin(lambda: None)


@define
class Ending:
    """The end of all ranks of this host within SHUTDOWN_S, and then of this process, whatever it waits for."""

    agent: Agent
    began: float | None = None

    def begin(self, report: Callable[[], None]) -> None:
        """report: called where this process does not come to report by itself."""
        self.began = time.time()
        os.kill(os.getpid(), signal.SIGTERM)
        end = time.monotonic() + SHUTDOWN_S
        while time.monotonic() < end and any(_is_there(each.pid) for each in self.agent.ranks()):
            time.sleep(LOOK_S)
        _send(signal.SIGKILL, self.agent.ranks())
        time.sleep(REPORT_S)
        report()
        os._exit(1)


if __name__ == "__main__":
    alone = len(sys.argv) == 3  # else the first machine hears it, in hosts.log
    run_main((lambda: telling(main, Path(sys.argv[1]).parent)) if alone else main)

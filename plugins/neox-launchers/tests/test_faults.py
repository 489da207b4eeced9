"""Faults of the second of two hosts under each launcher: which host is named, and how soon all ends.

The hosts are network namespaces with sshd of their own. The ranks wait in the place of those that train; what they
report, how they end and their heartbeats are those of the core. Each launcher meets one fault here. All of them:

    NEOX_FAULTS=faults.csv python -m pytest plugins/neox-launchers/tests/test_faults.py

which appends a line for each, and takes some minutes.
"""

import csv
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from clusters import Switch, can_have_hosts, real_ways, slurm, stop_daemons
from launched import ALL, RANK, Run

pytestmark = [
    pytest.mark.deadline,
    pytest.mark.ranks,
    pytest.mark.skipif(not can_have_hosts(), reason="needs root and network namespaces"),
]
TABLE = os.environ.get("NEOX_FAULTS")
LIMITS = {"host_timeout": 6, "end_timeout": 12}
LONGER = {"network down for 60 s": 90}
"""The host timeout of faults that pass, but not within that of the others."""
LATE_S = 40
"""A loaded machine is late."""
FAULTY = RANK.replace(
    "parent = os.getppid()\n",
    """\
from neox_core.errors import DataError
from neox_core.heartbeat import Heartbeat
from neox_core.run.exit import exit_code_of, for_the_user, write_failure
beat, parent, step = Heartbeat(int(os.environ["LOCAL_RANK"])), os.getppid(), 0
beat.expect(5.0, 5.0)
(run_dir / f"pids{me}").write_text(f"{os.getpid()} {parent}")
""",
).replace(
    '    if (run_dir / "fail").exists() and me == "2":\n        sys.exit(7)\n',
    """\
    step += 1
    beat.reached(step)
    beat.beat()
    fault = (run_dir / "fail").read_text() if (run_dir / "fail").exists() and me == "2" else ""
    try:
        if fault == "disk full":
            open("/dev/full", "wb", 0).write(b"x")
        if fault == "dataset missing":
            raise DataError("/data/tokens.idx: is missing on this machine")
    except Exception as error:
        told = for_the_user(error, 2)
        write_failure(run_dir, 2, told)
        os._exit(exit_code_of(told))
    if fault == "slow rank":
        time.sleep(2)
""",
)
NAMED = {
    "kill rank": "on host HOST: was killed by SIGKILL",
    "stopped rank": "on host HOST: made no progress for ",
    "disk full": "on host HOST: .*No space left on device",
    "dataset missing": "on host HOST: /data/tokens.idx: is missing",
    "kill agent": "host HOST: ",
    "kill sshd": "host HOST: ",
    "power off": "host HOST: ",
    "network down": "host HOST: ",
}
CONTINUES = ("network down for 2 s", "network down for 60 s", "slow rank")
MAY_CONTINUE = ("kill sshd",)
"""mpirun's daemons do not all need the connection by which they were started."""
FAULTS = [*NAMED, *CONTINUES]
WAYS = [launcher for launcher, _ in real_ways()]
FEW = {"pdsh": "disk full", "openmpi": "power off", "mpich": "stopped rank", "slurm": "kill agent"}


def disturb(run: Run, switch: Switch, host: str, fault: str) -> None:
    rank, agent = map(int, (run.folder / "pids2").read_text().split())
    if fault in ("kill rank", "stopped rank"):
        os.kill(rank, signal.SIGKILL if fault == "kill rank" else signal.SIGSTOP)
    elif fault == "kill agent":
        os.kill(agent, signal.SIGKILL)
    elif fault == "kill sshd":
        switch.kill_daemons(host)
    elif fault == "power off":
        switch.power_off(host)
    elif fault.startswith("network down"):
        switch.pull_the_cable(host)
        if fault in CONTINUES:
            time.sleep(int(fault.split()[-2]))
            switch.plug_it_in(host)
    else:
        (run.folder / "new").write_text(fault)
        (run.folder / "new").replace(run.folder / "fail")


@pytest.mark.parametrize(
    ("launcher", "fault"),
    [(launcher, fault) for launcher in WAYS for fault in FAULTS if TABLE or FEW.get(launcher) == fault],
)
def test_the_right_host_is_named_and_all_end(tmp_path, monkeypatch, launcher, fault):
    (tmp_path / "switch").mkdir()
    switch = Switch(tmp_path / "switch")
    hosts, second = tuple(switch.hosts), [*switch.hosts][1]
    name = "two" if launcher == "slurm" else second
    ssh = switch.env["PDSH_SSH_ARGS_APPEND"]
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    env = {**switch.env, **as_root, "OMPI_MCA_plm_rsh_args": ssh, "HYDRA_LAUNCHER_EXTRA_ARGS": ssh}
    try:
        more = {
            "openmpi": f"--mca oob_tcp_if_include {second.rpartition('.')[0]}.0/24",
            "mpich": f"-iface {switch.bridge}",
        }
        settings = {**LIMITS, "launcher_args": more.get(launcher, "")}
        settings["host_timeout"] = LONGER.get(fault, LIMITS["host_timeout"])
        if launcher == "slurm":
            settings["address"], hosts = hosts[0], ("one", "two")

        def way(folder: Path) -> dict[str, str]:
            return {**env, **(slurm(folder, f"{second.rpartition('.')[0]}.1", switch) if launcher == "slurm" else {})}

        run = Run(tmp_path, monkeypatch, way, launcher, hosts, FAULTY, **settings)
        run.wait_for(*ALL, "pids2")
        time.sleep(1.5)  # some heartbeats
        disturb(run, switch, second, fault)
        began = time.monotonic()
        if fault in (*CONTINUES, *MAY_CONTINUE):
            while run.process.poll() is None and time.monotonic() < began + 2 * LIMITS["host_timeout"]:
                time.sleep(0.1)
        continues = run.process.poll() is None and fault in (*CONTINUES, *MAY_CONTINUE)
        if continues:
            run.process.send_signal(signal.SIGTERM)
        code, failure = run.end(quiet=launcher != "mpich")
        took = time.monotonic() - began
    finally:
        switch.remove()
        stop_daemons(tmp_path / "way")
    message = "continues" if continues else str(failure.get("message"))
    if TABLE:
        with Path(TABLE).open("a", newline="", encoding="utf-8") as file:
            named = re.sub(rf"\b{re.escape(name)}\b", "h2", message).splitlines()[0]
            csv.writer(file).writerow((launcher, fault, named, "" if continues else f"{took:.1f}"))
    if continues:
        assert code == 0, failure
        return
    assert fault not in CONTINUES, failure
    assert code == 1
    assert re.match(NAMED[fault].replace("HOST", re.escape(name)), message), message
    assert took < 2 * LIMITS["end_timeout"] + LATE_S
    assert failure["rank"] == 2

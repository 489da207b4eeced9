"""Hosts for tests of launchers: stand-ins for pdsh and mpirun, sshd of one's own, and a Slurm cluster of one's own."""

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve
from neox_author.testing import example_plan, load_only
from neox_author.testing.ports import free_port

from neox_core.plan.component import offered
from neox_core.plan.hosts import name_of
from neox_core.plan.runfile import Host, RunPlan

HOSTS = ("127.0.0.1", "127.0.0.2")
PATIENCE_S = 60.0
"""For what happens at once on a machine that does nothing else."""

STAND_IN = """\
#!{python}
# pdsh as far as it is needed here: %n and %% in the command, a shell a host, its stdin open for as long as this lives,
# and of the environment what a login sets
import os, subprocess, sys, time
hosts, words = sys.argv[sys.argv.index("-w") + 1].split(","), sys.argv[sys.argv.index("-w") + 2 :]
ends, login = "\\0", {{name: os.environ[name] for name in ("HOME", "PATH")}}
command = " ".join(words).replace("%%", ends)
running = {{}}
for index, host in enumerate(hosts):
    if host[0].isdigit():
        text, place = command.replace("%n", str(index)).replace(ends, "%"), os.environ.get(f"NS_{{index}}")
        way = ["ip", "netns", "exec", place] if place else []
        running[host] = subprocess.Popen([*way, "sh", "-c", text], stdin=subprocess.PIPE, env=login)
    else:
        sys.stderr.write(f"pdsh@here: {{host}}: connect: Connection timed out\\n")
        sys.stderr.flush()
worst = 0
while running:
    for host in [each for each, process in running.items() if process.poll() is not None]:
        code = running.pop(host).returncode
        worst = max(worst, code)
        if code:
            sys.stderr.write(f"pdsh@here: {{host}}: ssh exited with exit code {{code}}\\n")
            sys.stderr.flush()
    time.sleep(0.05)
sys.exit(worst)
"""

MPI_STAND_IN = """\
#!{python}
# mpirun as far as it is needed here: -x or -genv, the number of each process; one that fails ends the others; of the
# environment what a login sets, and all of it for Hydra without -genvnone
import os, subprocess, sys, time
words = sys.argv[1:]
env = dict(pair.split("=", 1) for mark, pair in zip(words, words[1:]) if mark == "-x")
env |= {{name: value for mark, name, value in zip(words, words[1:], words[2:]) if mark == "-genv"}}
number = "PMI_RANK" if "-genv" in words else "OMPI_COMM_WORLD_RANK"
agent = words[words.index(sys.executable) :]
given = {{name: os.environ[name] for name in ("HOME", "PATH")}}
if "-genv" in words and "-genvnone" not in words:
    given = dict(os.environ)
running = [
    subprocess.Popen(agent, env={{**given, **env, number: str(each)}}, stdin=subprocess.DEVNULL)
    for each in range(int(words[words.index("-n") + 1]))
]
while any(each.poll() is None for each in running) and not any(each.poll() for each in running):
    time.sleep(0.05)
for each in running:
    if each.poll() is None:
        each.terminate()
sys.exit(max(each.wait() for each in running))
"""


def free_ports(count: int) -> list[int]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return [*ports]


def sshd(
    folder: Path, hosts: Sequence[str] = HOSTS, inside: Sequence[str] = (), login: int = 0, more: str = ""
) -> dict[str, str]:
    """A daemon of one's own on these addresses, with a key of its own, and how pdsh gets there. inside: a command.

    login: its port, where ssh is to hear of it from the hostfile. more: lines of its configuration.
    """
    port = login or free_ports(1)[0]
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    (folder / "user.pub").rename(folder / "authorized")
    listen = "".join(f"ListenAddress {host}\n" for host in hosts)
    (folder / "sshd_config").write_text(
        f"Port {port}\n{listen}HostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\nStrictModes no\n"
        f"PidFile {folder}/sshd.pid\nUsePAM no\nPasswordAuthentication no\n{more}"
    )
    (folder / "ssh_config").write_text(
        f"Host *\n{'' if login else f' Port {port}'}\n IdentityFile {folder}/user\n StrictHostKeyChecking no\n"
        f" UserKnownHostsFile {folder}/known\n LogLevel ERROR\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    start_sshd(folder, inside)
    ssh = f"-F {folder}/ssh_config"
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {"PDSH_SSH_ARGS_APPEND": ssh, "OMPI_MCA_plm_rsh_args": ssh, **as_root}


def start_sshd(folder: Path, inside: Sequence[str] = ()) -> None:
    """Start the daemon of a folder, and wait until it listens: the command ends before that."""
    written = folder / "sshd.pid"
    written.unlink(missing_ok=True)
    subprocess.run([*inside, shutil.which("sshd"), "-f", folder / "sshd_config"], check=True)
    end = time.monotonic() + PATIENCE_S
    while not written.exists() and time.monotonic() < end:
        time.sleep(0.01)
    assert written.exists(), f"sshd of {folder} does not listen"


def slurm(folder: Path, controls: str = "127.0.0.1", switch: "Switch | None" = None) -> dict[str, str]:
    """A cluster of one's own: a controller, and this machine as the two nodes `one` and `two`.

    switch: has the namespaces that are the nodes. controls: the address of the controller.
    """
    here, (controller, *nodes) = socket.gethostname(), free_ports(3)
    spaces = dict.fromkeys(("one", "two"), (controls, "")) if switch is None else switch.nodes()
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o600)
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text(
        f"ClusterName=test\nSlurmctldHost={here}({controls})\nSlurmctldPort={controller}\nSlurmUser=root\n"
        f"AuthType=auth/munge\nAuthInfo=socket={folder}/munge\nCredType=cred/munge\n"
        f"StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/%n\n"
        f"SlurmctldPidFile={folder}/controller.pid\nSlurmdPidFile={folder}/%n.pid\n"
        f"SlurmctldLogFile={folder}/controller.log\nSlurmdLogFile={folder}/%n.log\n"
        "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres\n"
        f"NodeName=one NodeHostname={here} NodeAddr={spaces['one'][0]} Port={nodes[0]}\n"
        f"NodeName=two NodeHostname={here} NodeAddr={spaces['two'][0]} Port={nodes[1]}\n"
        "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\nSchedulerParameters=sched_interval=2\n"
        "PartitionName=all Nodes=ALL Default=YES State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=120\n"
        "PartitionName=urgent Nodes=ALL State=UP PriorityTier=2 PreemptMode=OFF\n"
    )
    files = {"socket": "munge", "key-file": "key", "log-file": "log", "pid-file": "munge.pid", "seed-file": "seed"}
    munge = [f"--{option}={folder / name}" for option, name in files.items()]
    conf = {"SLURM_CONF": str(folder / "slurm.conf")}
    # not `ip netns exec`, which mounts another /sys, without the control groups that slurmd looks for
    inside = {name: ["nsenter", f"--net=/run/netns/{space}"] if space else [] for name, (_, space) in spaces.items()}
    on_nodes = ([*inside[name], "slurmd", "-N", name] for name in spaces)
    for daemon in (["munged", "--force", *munge], ["slurmctld"], *on_nodes):
        subprocess.run(daemon, env=os.environ | conf, check=True, capture_output=True)
    return conf


def mpich(folder: Path, login: int = 0) -> dict[str, str]:
    """As `sshd`, for MPICH's mpirun, which is not the `mpirun` of every machine."""
    found = sshd(folder, login=login)
    return {**found, "HYDRA_LAUNCHER_EXTRA_ARGS": found["PDSH_SSH_ARGS_APPEND"]}


def stand_in(folder: Path) -> dict[str, str]:
    for name, text in (("pdsh", STAND_IN), ("mpirun", MPI_STAND_IN)):
        program = folder / name
        program.write_text(text.format(python=sys.executable))
        program.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def real_ways() -> list[tuple[str, Callable[[Path], dict[str, str]]]]:
    """The launchers whose programs are here, with a daemon of one's own that they start processes by."""

    def there(*names: str) -> bool:
        return os.geteuid() == 0 and all(shutil.which(name) for name in names)

    ways = [("pdsh", sshd, "pdsh"), ("openmpi", sshd, "mpirun"), ("mpich", mpich, "mpirun.mpich")]
    ways += [("slurm", slurm, "srun")]
    daemons = {sshd: ("sshd", "ssh-keygen"), mpich: ("sshd", "ssh-keygen"), slurm: ("munged", "slurmctld", "slurmd")}
    return [(launcher, way) for launcher, way, program in ways if there(program, *daemons[way])]


def ways(*launchers: str) -> list[tuple[str, Callable[[Path], dict[str, str]]]]:
    """The real ones, and a stand-in for each of these launchers that is not here."""
    real = real_ways()
    return [*((each, stand_in) for each in launchers if each not in dict(real)), *real]


class OtherHost:
    """A network namespace in the place of a second host: its own addresses, and a cable that can be pulled."""

    _numbers = itertools.count()

    def __init__(self) -> None:
        number = next(self._numbers)  # a namespace stays for a moment after it was deleted
        self.name = f"neox{os.getpid() % 10_000}-{number}"
        self.addresses = tuple(f"10.{200 + number}.{os.getpid() % 250}.{each}" for each in (1, 2))
        here, there = f"{self.name}a", f"{self.name}b"
        _ip("netns", "add", self.name)
        _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", self.name)
        _ip("address", "add", f"{self.addresses[0]}/24", "dev", here)
        _ip("link", "set", here, "up")
        for words in (("address", "add", f"{self.addresses[1]}/24", "dev", there), ("link", "set", there, "up")):
            _ip("-n", self.name, *words)
        _ip("-n", self.name, "link", "set", "lo", "up")

    def pull_the_cable(self) -> None:
        _ip("link", "set", f"{self.name}a", "down")

    def power_off(self) -> None:
        """Nothing that it still sends arrives."""
        self.pull_the_cable()
        _kill_all_of(self.name)

    def remove(self) -> None:
        self.power_off()
        _ip("netns", "delete", self.name)


class Switch:
    """Network namespaces in the places of hosts, with sshd of their own, joined by a bridge of this machine.

    Each has one card, `eth0`. folder: for the files of sshd and ssh. env: how pdsh gets to the hosts.
    """

    _numbers = itertools.count()  # a namespace stays for a moment after it was deleted

    def __init__(self, folder: Path, count: int = 2) -> None:
        number = os.getpid()
        self.folder, self.bridge = folder, f"nx{number % 100_000}-{next(self._numbers)}"
        network = f"10.{190 + number // 250 % 10}.{number % 250}"
        self.hosts = {f"{network}.{each + 2}": f"{self.bridge}-{each}" for each in range(count)}
        _ip("link", "add", self.bridge, "type", "bridge")
        _ip("address", "add", f"{network}.1/24", "dev", self.bridge)
        _ip("link", "set", self.bridge, "up")
        for host, space in self.hosts.items():
            _ip("netns", "add", space)
            _ip("link", "add", space, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("link", "set", space, "master", self.bridge)
            _ip("-n", space, "address", "add", f"{host}/24", "dev", "eth0")
            for card in ("lo", "eth0"):
                _ip("-n", space, "link", "set", card, "up")
            (folder / host).mkdir()
            self.power_on(host)
        text = "".join((folder / host / "ssh_config").read_text().replace("*", host, 1) for host in self.hosts)
        (folder / "ssh_config").write_text(text)
        self.env = {"PDSH_SSH_ARGS_APPEND": f"-F {folder}/ssh_config", "GLOO_SOCKET_IFNAME": "eth0"}

    def power_on(self, host: str) -> None:
        _ip("link", "set", self.hosts[host], "up")
        inside = ("ip", "netns", "exec", self.hosts[host])
        if (self.folder / host / "sshd_config").exists():
            start_sshd(self.folder / host, inside)
        else:
            sshd(self.folder / host, [host], inside)

    def power_off(self, host: str) -> None:
        """Nothing that it still sends arrives."""
        _ip("link", "set", self.hosts[host], "down")
        _kill_all_of(self.hosts[host])

    def pull_the_cable(self, host: str) -> None:
        _ip("link", "set", self.hosts[host], "down")

    def plug_it_in(self, host: str) -> None:
        _ip("link", "set", self.hosts[host], "up")

    def nodes(self) -> dict[str, tuple[str, str]]:
        """Address and namespace of the hosts by the names that Slurm's nodes have."""
        return dict(zip(("one", "two"), self.hosts.items(), strict=True))

    def kill_daemons(self, host: str) -> None:
        """All processes of sshd, those of connections too, and Slurm's daemon; their ports are free then."""
        killed = []
        for pid in _pids(self.hosts[host]):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip() in ("sshd", "slurmd"):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)
        end = time.monotonic() + PATIENCE_S
        while {*killed} & {*_pids(self.hosts[host])} and time.monotonic() < end:
            time.sleep(0.01)

    def remove(self) -> None:
        for space in self.hosts.values():
            _kill_all_of(space)
            _ip("netns", "delete", space)
        _ip("link", "delete", self.bridge)


def _pids(space: str) -> list[int]:
    pids = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=True)
    return [int(pid) for pid in pids.stdout.split()]


def _kill_all_of(space: str) -> None:
    for pid in _pids(space):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def can_have_hosts() -> bool:
    """Whether this process may make network namespaces."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        return False
    return subprocess.run(["unshare", "-n", "true"], check=False, capture_output=True).returncode == 0


def plan_for(
    folder: Path, launcher: str, hosts: Sequence[str] = (), port: int = 29500, address: str = "", **settings: Any
) -> RunPlan:
    """Two ranks on the first host and one on each other, started by a launcher with these settings.

    address: of the first host, where its name is not one.
    """
    plan = example_plan(folder, ranks=[2, 1], port=port)
    if hosts:
        places = tuple(Host(name, 1 if number else 2) for number, name in enumerate(hosts))
        plan = evolve(
            plan,
            cluster=evolve(
                plan.cluster,
                hosts=places,
                master_addr=name_of(hosts[0]) if name_of(hosts[0])[0].isdigit() else address or HOSTS[0],
                threads_per_rank=1,
            ),
        )
    entry = load_only("neox-launchers").find("launcher", launcher)
    return evolve(plan, launcher=evolve(offered(entry), settings=settings))


def stop_daemons(folder: Path) -> None:
    for file in folder.glob("*.pid"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(file.read_text()), signal.SIGTERM)

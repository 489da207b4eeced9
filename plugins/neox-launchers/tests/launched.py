"""A launch over several hosts, with ranks that say who they are and wait in the place of those that train."""

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest
from clusters import HOSTS, free_ports, plan_for, stand_in, stop_daemons

import neox_core
from neox_core.plan.runfile import write_runfile

ALL = ("here0", "here1", "here2")
RANK = """\
import json, os, signal, sys, time
from pathlib import Path
run_dir = Path(sys.argv[1]).parent
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "NCCL_NOTE")
me = os.environ["RANK"]
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
(run_dir / f"env{me}").write_text(json.dumps(dict(os.environ)))
(run_dir / f"here{me}").write_text("\\n".join(os.environ[name] for name in names))
parent = os.getppid()
while not asked and os.getppid() == parent:
    if (run_dir / "fail").exists() and me == "2":
        sys.exit(7)
    time.sleep(0.05)
time.sleep(0.3)
(run_dir / f"left{me}").write_text(str(len(asked)))
"""


class Run:
    """A launch over several hosts whose ranks say who they are and wait."""

    def __init__(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way, launcher="pdsh", hosts=None, code=RANK, **settings
    ) -> None:
        hosts = hosts or (("one", "two") if launcher == "slurm" else HOSTS)
        package = tmp_path / "neox_core" / "run"
        package.mkdir(parents=True)
        (tmp_path / "neox_core" / "__init__.py").write_text(f"__path__.append({next(iter(neox_core.__path__))!r})\n")
        (package / "__init__.py").write_text(f"__path__.append({next(iter(neox_core.__path__)) + '/run'!r})\n")
        (package / "rank.py").write_text(code)
        self.daemons = tmp_path / "way"
        self.daemons.mkdir()
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setenv("NCCL_NOTE", 'it\'s 100% "$HOME"')
        for name, value in way(self.daemons).items():
            monkeypatch.setenv(name, value)
        self.folder = tmp_path / "run of two"
        self.folder.mkdir()
        (self.port,) = free_ports(1)
        if launcher == "mpich" and way is not stand_in:
            settings = {"launcher_program": "mpirun.mpich", **settings}
        plan = plan_for(self.folder, launcher, hosts, self.port, **settings)
        monkeypatch.chdir(self.folder)
        write_runfile(plan, Path("run.json"))
        (self.folder / "failure.json").write_text("{}")
        (self.folder / "stop").write_text("asked")  # of a run before
        command = plan.launcher.make(plan, Path("run.json"))
        self.process = subprocess.Popen(
            command.argv, env={**os.environ, **command.env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def wait_for(self, *names: str) -> None:
        """Until all ranks have written their files, or the run is over."""
        while self.process.poll() is None and not all((self.folder / name).exists() for name in names):
            time.sleep(0.05)
        assert all((self.folder / name).exists() for name in names), self.process.communicate()

    def end(self, *, quiet: bool = True) -> tuple[int, dict]:
        out, err = self.process.communicate(timeout=300)
        assert (out if quiet else "", re.sub(r"waiting for .* of \d hosts\n", "", err)) == ("", "")
        failure = self.folder / "failure.json"
        return self.process.returncode, json.loads(failure.read_text()) if failure.exists() else {}

    def stop_daemons(self, within: str = "") -> None:
        stop_daemons(self.daemons / within)

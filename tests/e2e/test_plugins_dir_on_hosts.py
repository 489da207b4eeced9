"""`neox --plugins-dir` over two hosts: network namespaces with sshd of their own, reached by pdsh.

The hosts share this machine's files, but for the cache folder of the second one where a test mounts another one there.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "plugins" / "neox-launchers" / "tests"))

from clusters import Switch, can_have_hosts, free_ports, start_sshd  # noqa: E402

pytestmark = [
    pytest.mark.ranks,
    pytest.mark.skipif(
        not can_have_hosts() or not all(map(shutil.which, ("pdsh", "sshd", "ssh-keygen", "mount"))),
        reason="needs root, network namespaces, sshd and pdsh",
    ),
]
CONFIG = """
num-layers: 1
hidden-size: 32
num-attention-heads: 2
seq-length: 16
max-position-embeddings: 16
tokenizer-type: CharLevelTokenizer
data-path: {folder}/text.jsonl
data-impl: text
split: 100,0,0
eval-iters: 0
num-workers: 0
device: cpu
engine: plain
train_micro_batch_size_per_gpu: 2
optimizer: {{type: SpreadSGD}}
lr-decay-style: constant
train-iters: 2
save: {folder}/saved
peak-tflops: 0.1
launcher: pdsh
hostfile: {folder}/hostfile
master-port: {port}
launcher-env: [GLOO_SOCKET_IFNAME]
"""


class Hosts:
    """Two hosts, and a run on them with the optimizer of docs/plugins/one-file.md in the folder `mine`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache = folder, folder / "cache"
        page = (ROOT / "docs/plugins/one-file.md").read_text("utf-8")
        (self.source,) = re.findall(r"`spread\.py`:\n\n```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        (folder / "mine").mkdir()
        (folder / "mine/spread.py").write_text(self.source)
        lines = (json.dumps({"text": f"document {n} of a text"}) for n in range(200))
        (folder / "text.jsonl").write_text("\n".join(lines))
        (folder / "switch").mkdir()
        self.switch = Switch(folder / "switch")
        self.second = [*self.switch.hosts][1]
        (folder / "hostfile").write_text("".join(f"{host} slots=1\n" for host in self.switch.hosts))
        (folder / "run.yml").write_text(CONFIG.format(folder=folder, port=free_ports(1)[0]))

    def neox(self, *argv: str) -> tuple[int, str]:
        env = {**os.environ, **self.switch.env, "XDG_CACHE_HOME": str(self.cache), "OMP_NUM_THREADS": "1"}
        env.pop("PYTHONPATH", None)
        words = [sys.executable, "-m", "neox_core", "--plugins-dir", "mine", *argv]
        done = subprocess.run(words, env=env, cwd=self.folder, capture_output=True, text=True, timeout=400, check=False)
        return done.returncode, done.stdout + done.stderr

    def give_the_second_its_own(self, cache: Path) -> None:
        """Start its sshd again, with another folder in the place of the cache."""
        self.switch.kill_daemons(self.second)
        mount = f'mount --bind {cache} {self.cache} && exec "$@"'
        inside = ("ip", "netns", "exec", self.switch.hosts[self.second], "sh", "-c", mount, "sh")
        start_sshd(self.switch.folder / self.second, inside)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    yield made
    made.switch.remove()


def test_ranks_of_two_hosts_train_with_it(hosts: Hosts) -> None:
    code, said = hosts.neox("train", "run.yml")
    assert code == 0, said
    assert json.loads((hosts.folder / "saved/run.json").read_text())["plugins"]["spread"].startswith("0+")


@pytest.mark.parametrize("fault", ["missing", "edited"])
def test_a_host_with_other_files_is_named(fault: str, hosts: Hosts) -> None:
    code, said = hosts.neox("plugins", "list")  # fills the cache
    assert code == 0, said
    other = hosts.folder / "other"
    shutil.copytree(hosts.cache, other)
    (file,) = other.glob("**/plugins-dir/*/spread.py")
    if fault == "missing":
        shutil.rmtree(file.parents[1])
    else:
        file.write_text(hosts.source + "# edited\n")
    hosts.give_the_second_its_own(other)
    code, said = hosts.neox("train", "run.yml")
    assert code not in (0, 1), said
    assert hosts.second in said
    wanted = "lacks spread, which" if fault == "missing" else "has other files of spread than"
    logs = "".join(log.read_text(errors="replace") for log in hosts.folder.glob("saved/**/*.log"))
    assert f"{hosts.second} {wanted}" in said + logs, said

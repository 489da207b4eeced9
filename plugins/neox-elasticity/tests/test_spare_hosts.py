"""A host that loses its power is replaced by a spare one of the hostfile. Hosts are network namespaces, by pdsh."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "neox-launchers" / "tests"))
sys.path.insert(0, str(Path(__file__).parent))

from clusters import Switch, can_have_hosts, real_ways
from test_membership import Run, folder

__all__ = ["folder"]

pytestmark = [
    pytest.mark.deadline,
    pytest.mark.ranks,
    pytest.mark.skipif(
        not (can_have_hosts() and "pdsh" in dict(real_ways())), reason="needs root, network namespaces, pdsh and sshd"
    ),
]


def test_a_spare_host_continues_what_a_host_without_power_has_left(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "switch").mkdir()
    switch = Switch(tmp_path / "switch", 3)
    try:
        first, second, spare = switch.hosts
        (folder / "hosts").write_text("".join(f"{host} slots=1\n" for host in switch.hosts))
        for name, value in switch.env.items():
            monkeypatch.setenv(name, value)
        alone = ("elasticity.enabled=false", "train_batch_size=12", "max-restarts=1", "num-nodes=2", "launcher=pdsh")
        run = Run(folder, "train", *alone, "host-timeout=6", "train-iters=24")
        run.until(12, ranks=2)
        switch.power_off(second)
        code = run.end()
    finally:
        switch.remove()
    assert code == 0, run.said()
    assert [each["step"] for each in run.records()] == [*range(1, 25)]
    assert run.said().count(f"neox train: max-restarts may replace hosts that fail by the spare {spare}\n") == 1
    starts = [each["slots"] for each in run.events() if each["event"] == "start"]
    assert starts == [f"{first}:0@{second}:0", f"{first}:0@{spare}:0"]
    (why,) = [each["why"] for each in run.events() if each["event"] == "restart"]
    assert why.startswith(f"host {second}: ")
    told = [json.loads(line) for line in (run.save / "metrics.jsonl").read_text().splitlines()]
    assert [each["restarts"] for each in told if "restarts" in each] == [1.0]


def test_a_spare_host_takes_the_place_of_a_relay_and_the_losses_are_those_of_one_process(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four hosts in two parts, of which the second loses its first host; another one is a relay then."""
    plain = ("elasticity.enabled=false", "train_batch_size=12", "train-iters=24")
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "run.yml").write_text((folder / "run.yml").read_text())
    alone = Run(tmp_path / "alone", "train", *plain, "num-gpus=1")
    assert alone.end() == 0, alone.said()
    (tmp_path / "switch").mkdir()
    switch = Switch(tmp_path / "switch", 5)
    try:
        hosts = [*switch.hosts]
        (folder / "hosts").write_text("".join(f"{host} slots=1\n" for host in hosts))
        for name, value in switch.env.items():
            monkeypatch.setenv(name, value)
        tree = ("max-restarts=1", "num-nodes=4", "launcher=pdsh", "pdsh-tree-from=4", "host-timeout=6")
        run = Run(folder, "train", *plain, *tree)
        run.until(12, ranks=4)
        switch.power_off(hosts[2])
        code = run.end()
    finally:
        switch.remove()
    assert code == 0, run.said()
    (why,) = [each["why"] for each in run.events() if each["event"] == "restart"]
    assert why.startswith(f"host {hosts[2]}: ")
    starts = [each["slots"] for each in run.events() if each["event"] == "start"]
    assert starts == ["@".join(f"{hosts[each]}:0" for each in places) for places in ((0, 1, 2, 3), (0, 1, 3, 4))]
    mine, theirs = run.records(), alone.records()
    assert [each["step"] for each in mine] == [each["step"] for each in theirs] == [*range(1, 25)]
    assert [each["loss"] for each in mine] == pytest.approx([each["loss"] for each in theirs], abs=1e-6)

"""Runs of `neox elastic` whose ranks and hosts come and go, against runs that nothing disturbs."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from toy_runs import NEOX, PLAIN, Run, make_toy

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "plugins" / "neox-launchers" / "tests"))

from clusters import can_have_hosts, sshd  # noqa: E402
from clusters import real_ways as ways  # noqa: E402

pytestmark = [pytest.mark.ranks, pytest.mark.deadline]
LAST = 30
BLOCK = (
    "elasticity.enabled=true",
    "elasticity.max_train_batch_size=8",
    "elasticity.micro_batch_sizes=[4]",
    "elasticity.ignore_non_elastic_batch_info=true",
)
needs_hosts = pytest.mark.skipif(
    not can_have_hosts() or sshd not in dict(ways()).values() or not shutil.which("pdsh"),
    reason="needs root, network namespaces, sshd and pdsh",
)


@pytest.mark.parametrize(
    "words",
    [
        "--kinds leave --steps 36 --seed 1",
        pytest.param("--kinds power,join --steps 48 --seed 2 --hosts", marks=needs_hosts),
    ],
    ids=["one host", "two hosts over pdsh"],
)
def test_the_short_form_of_the_benchmark(tmp_path, run_bounded, words):
    """It ends with a fault unless losses are equal to 1e-6, steps once each, and the checkpoint has the world sizes."""
    run_bounded([sys.executable, str(ROOT / "benchmarks/elastic_cpu.py"), str(tmp_path / "runs"), *words.split()], 500)


def test_a_rank_that_hangs_loses_its_slot(tmp_path):
    toy = make_toy(tmp_path / "toy")
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    planned = (PLAIN, "activation=faulty", f"train-iters={LAST}", "log-interval=1", "save-interval=5", *BLOCK)
    save, path = tmp_path / "elastic", f"{toy / 'plugin'}:{os.environ.get('PYTHONPATH', '')}"
    sets = (*planned, "stall-timeout=6", "num_gpus=-1", f"hostfile={tmp_path}/hosts", f"save={save}")
    words = [*NEOX, "elastic", str(toy / "config.yml"), *(word for each in sets for word in ("--set", each))]
    env = {**os.environ, "PYTHONPATH": path, "FAULT": "hang"}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "rank 1: made no progress for " in done.stderr
    events = [json.loads(line) for line in (save / "elastic.jsonl").read_text().splitlines()]
    events = [each for each in events if each["event"] in ("start", "lost")]
    assert [(each["event"], each.get("world_size", each.get("slot"))) for each in events[:3]] == [
        ("start", 2),
        ("lost", 1),
        ("start", 1),
    ]
    (tmp_path / "alone").mkdir()
    alone = Run(toy, tmp_path / "alone", *planned, "num_gpus=1", FAULT="none")
    assert alone.end()[0] == 0
    records = [json.loads(line) for line in (save / "metrics.jsonl").read_text().splitlines()]
    mine = [(each["step"], each["loss"]) for each in records if "loss" in each]
    assert [step for step, _ in mine] == list(range(1, LAST + 1))
    assert dict(mine) == pytest.approx(alone.losses(), abs=1e-6)

"""Profiles of steps: by hand with known work, and in real runs of both engines and of a pipeline."""

import gzip
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from neox_author.testing import assert_light, build, check_callback, load_only
from neox_profile.profiler import Profiler, Unprofiled, profile_steps
from neox_profile.settings import ProfileSettings

from neox_core.config.report import ProblemsError
from neox_core.contracts.host import RunInfo
from neox_core.hooks.loader import load_plugins
from neox_core.interpreter import python
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.resolve import prepare_run

pytestmark = pytest.mark.ranks


def profiler(folder: Path, **block: Any) -> Any:
    settings: ProfileSettings = build(load_only("neox-profile").find("callback", "profile"), profile=block)
    run = RunInfo(folder, 0, 100, 10, 1, 10, "cpu", 4)
    context = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), 0)
    return profile_steps(run, context, settings)


def train(callback: Any, first: int, last: int) -> list[bool]:
    """Steps with as many products as the step has, as the loop calls a callback; by step, whether it was profiled."""
    profiled = []
    callback.start(first - 1)
    for step in range(first, last + 1):
        profiled.append(torch.autograd._profiler_enabled())
        for _ in range(step):
            torch.ones(4, 4).mm(torch.ones(4, 4))
        callback.step(step)
    return profiled


def events(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    with gzip.open(folder / "profiles" / f"rank{rank}.trace.json.gz", "rt") as file:
        trace: dict[str, Any] = json.load(file)
    return trace["traceEvents"]


def count(found: list[dict[str, Any]], name: str) -> int:
    return sum(each.get("name") == name and each.get("cat") in ("cpu_op", "user_annotation") for each in found)


def test_listing_is_light() -> None:
    assert_light("neox-profile")


@pytest.mark.parametrize("block", [{}, {"first": 1, "last": 3}])
def test_contract(block: dict[str, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_callback(load_only("neox-profile"), "profile", profile=block)


def test_the_steps_that_are_named_and_no_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(profiler(tmp_path, first=4, last=6), 1, 9) == [False] * 3 + [True] * 3 + [False] * 3
    found = events(tmp_path)
    assert count(found, "aten::mm") == 4 + 5 + 6
    assert [count(found, f"step {step}") for step in range(1, 10)] == [0, 0, 0, 1, 1, 1, 0, 0, 0]
    told = json.loads((tmp_path / "profiles" / "rank0.json").read_text())
    assert (told["steps"], told["device"], len(told["ops"]) <= 10) == ("4 to 6", "cpu", True)
    assert next(row for row in told["ops"] if row["name"] == "aten::mm")["calls"] == 15
    times = [row["cpu_ms"] for row in told["ops"]]
    assert times == sorted(times, reverse=True)
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"profile of rank 0, steps 4 to 6: {tmp_path}/profiles/rank0.trace.json.gz")
    assert [line.split()[-1] for line in said[2:]] == [row["name"].split()[-1] for row in told["ops"]]


def test_one_step_the_first(tmp_path: Path) -> None:
    train(profiler(tmp_path, first=1), 1, 3)
    assert count(events(tmp_path), "aten::mm") == 1


def test_a_run_that_resumes_within_the_steps_or_ends_before(tmp_path: Path) -> None:
    train(profiler(tmp_path, first=2, last=5), 4, 8)
    assert count(events(tmp_path), "aten::mm") == 4 + 5
    callback = profiler(tmp_path, first=2, last=5)
    train(callback, 1, 3)
    callback.end(3)
    assert count(events(tmp_path), "aten::mm") == 2 + 3
    assert not torch.autograd._profiler_enabled()
    callback = profiler(tmp_path / "after", first=2, last=5)
    assert train(callback, 6, 7) == [False, False]
    callback.end(7)
    assert not (tmp_path / "after").exists()


def test_a_rewind_does_not_profile_again(tmp_path: Path) -> None:
    callback = profiler(tmp_path, first=2, last=3)
    train(callback, 1, 4)
    assert [torch.autograd._profiler_enabled() for step in (1, 2, 3) if callback.step(step) is None] == [False] * 3


def test_another_rank_has_nothing_to_do_in_a_step(tmp_path: Path) -> None:
    callback = profiler(tmp_path, first=2, ranks=[3])
    assert type(callback) is Unprofiled
    assert not hasattr(callback, "step")


def test_a_folder_that_cannot_be_written_does_not_end_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profiles").write_text("a file")
    train(profiler(tmp_path, first=2), 1, 3)
    assert "cannot be written to" in capsys.readouterr().out


def test_on_a_gpu_nsys_is_told_of_each_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is needed to see which calls of torch.cuda are made, in which order."""
    calls: list[str] = []
    for path in ("profiler.start", "profiler.stop", "nvtx.range_push", "nvtx.range_pop", "synchronize"):
        monkeypatch.setattr(f"torch.cuda.{path}", lambda *text, path=path: calls.append(" ".join((path, *text))))
    monkeypatch.setattr("neox_profile.recorded.emit_nvtx", torch.no_grad)
    settings: ProfileSettings = build(
        load_only("neox-profile").find("callback", "profile"), profile={"first": 2, "last": 3, "nsys": True}
    )
    callback = Profiler(tmp_path / "profiles", 0, torch.device("cuda"), settings.profile)
    for step in range(4):
        callback.step(step)
    assert calls == [
        "profiler.start",
        "nvtx.range_push step 2",
        "nvtx.range_pop",
        "nvtx.range_push step 3",
        "nvtx.range_pop",
        "synchronize",
        "profiler.stop",
    ]
    assert not (tmp_path / "profiles").exists()


CONFIG = """
num-layers: 2
hidden-size: 16
num-attention-heads: 2
seq-length: 16
max-position-embeddings: 16
norm: rmsnorm
pos-emb: rotary
padded-vocab-size: 64
data-path: {folder}/toy
data-impl: mmap
num-workers: 0
split: 90,10,0
device: cpu
num_gpus: 2
train_micro_batch_size_per_gpu: 2
gradient_accumulation_steps: 2
optimizer: {{type: Adam, params: {{lr: 0.01}}}}
lr-decay-style: constant
train-iters: 6
eval-interval: 6
eval-iters: 1
peak-tflops: 0.1
seed: 7
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    entry = load_only("neox-data-indexed").find("data backend", "mmap")
    writer = entry.load()(build(entry)).create(folder / "toy", 64)
    for document in range(40):
        writer.add_document([(7 * document + 3 * place) % 60 for place in range(120)])
    writer.close()
    (folder / "config.yml").write_text(CONFIG.format(folder=folder))
    return folder / "config.yml"


@pytest.mark.parametrize(
    ("sets", "ranks"),
    [(("engine=plain",), (1,)), (("engine=deepspeed", "pipe_parallel_size=2"), (0, 1))],
    ids=["plain", "pipeline of deepspeed"],
)
def test_in_a_run(config: Path, tmp_path: Path, sets: tuple[str, ...], ranks: tuple[int, ...]) -> None:
    words = [*python("neox_core"), "train", str(config), "--run-dir", str(tmp_path)]
    chosen = (*sets, "profile.first=3", "profile.last=4", f"profile.ranks={[*ranks]}")
    words += [word for each in chosen for word in ("--set", each)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {path.name for path in (tmp_path / "profiles").iterdir()} == {
        name for rank in ranks for name in (f"rank{rank}.json", f"rank{rank}.trace.json.gz")
    }
    for rank in ranks:
        found = events(tmp_path, rank)
        assert [count(found, f"step {step}") for step in range(1, 7)] == [0, 0, 1, 1, 0, 0]
        updates = [each["name"] for each in found if str(each.get("name")).startswith("Optimizer.step#")]
        assert len(updates) == 2
    log = done.stdout if 0 in ranks else (tmp_path / "logs" / f"rank{ranks[0]}.log").read_text()
    assert f"profile of rank {ranks[0]}, steps 3 to 4" in log
    assert "ms on the CPU" in log


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("profile={}", "profile.last=3"), "profile.first: is required"),
        (("callbacks=[profile]",), "profile.first: is required"),
        (("profile.first=5", "profile.last=3"), "profile.last: 3 comes before profile.first 5"),
        (("profile.first=7",), "profile.first: 7: the run has 6 steps"),
        (("profile.first=1", "profile.last=7"), "profile.last: 7: the run has 6 steps"),
        (("profile.first=1", "profile.last=101", "train-iters=200"), "at most 100"),
        (("profile.first=1", "profile.ranks=[0, 2]"), "profile.ranks: 2: the run has ranks 0 to 1"),
        (("profile.first=1", "profile.ranks=[0, 0]"), "profile.ranks: must be different ranks"),
        (("profile.first=1", "profile.ranks=[]"), "profile.ranks: must be different ranks"),
        (("profile.first=0",), "profile.first: must be >= 1"),
        (("profile.first=1.5",), "profile.first"),
    ],
)
def test_what_cannot_be_profiled_is_refused(config: Path, sets: tuple[str, ...], said: str) -> None:
    with pytest.raises(ProblemsError) as caught:
        prepare_run([config], ("engine=plain", *sets), catalog=load_plugins(), start=False)
    assert said in str(caught.value)


def test_nsys_on_a_cpu_is_a_note(config: Path) -> None:
    sets = ("engine=plain", "profile.first=1", "profile.nsys=true", "profile.from=1")
    resolved = prepare_run([config], sets, catalog=load_plugins(), start=False)
    notes = {note.key: note.message for note in resolved.notes}
    assert notes["profile.nsys"] == "has no effect on a CPU: a trace of torch is written"

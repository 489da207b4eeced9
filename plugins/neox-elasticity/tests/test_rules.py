"""What a config with elasticity is told, and the plan that follows."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from neox_author.testing import assert_light, check_callback, load_only
from neox_elasticity.history import History
from neox_elasticity.starts import STARTED, starts

from neox_core.config.report import ProblemsError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import Resolved, prepare_run

CONFIG = """\
num-layers: 1
hidden-size: 8
num-attention-heads: 2
seq-length: 8
max-position-embeddings: 8
padded-vocab-size: 16
train-iters: 4
device: cpu
num_gpus: 4
engine: plain
eval-iters: 0
optimizer: {type: Adam, params: {lr: 1.0e-3}}
elasticity: {enabled: true, max_train_batch_size: 30, micro_batch_sizes: [2, 3]}
"""


ALONE = ("elasticity.enabled=false", "train_batch_size=4")
SPARE = ("launcher=pdsh", "hostfile=hosts", "num_nodes=1")


def resolve(tmp_path: Path, *sets: str) -> Resolved:
    config = tmp_path / "run.yml"
    config.write_text(CONFIG, encoding="utf-8")
    return prepare_run([config], (f"data-path={tmp_path}/none", *sets), catalog=load_plugins(), start=False)


def test_listing_is_light() -> None:
    assert_light("neox-elasticity")


def test_contract() -> None:
    check_callback(load_only("neox-elasticity"), "elasticity", elasticity={"enabled": True})


def test_the_batch_of_the_block_takes_the_place_of_the_batch_keys(tmp_path: Path) -> None:
    resolved = resolve(tmp_path)
    batch = resolved.plan.batch
    assert (batch.micro_batch, batch.gradient_accumulation, batch.data_parallel, batch.train_batch) == (3, 2, 4, 24)
    (note,) = [each for each in resolved.notes if each.key == "elasticity.enabled"]
    assert note.severity == "note"
    assert note.message == (
        "24 samples a step on 1, 2, 3, 4, 6, 8 and 12 ranks; here, on 4, 3 a copy x 2 accumulated x 4"
    )


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        ((), "save: is required by max-restarts"),
        (("save=there",), "num_gpus: contradicts max-restarts"),
        (("save=there", "num_gpus=-1", "include=localhost:0"), "include: contradicts max-restarts"),
        (("save=there", *ALONE, "exclude=localhost:0"), "exclude: contradicts max-restarts"),
        (("save=there", *ALONE, *SPARE, "num_gpus=1", "master_addr=one"), "master_addr: .* a spare host may replace"),
        (("save=there", *ALONE, *SPARE, "num_gpus=-1"), "num_gpus: is required where the hosts have different"),
        (("save=there", *ALONE, *SPARE, "num_gpus=1", "num_nodes=3"), "num_nodes: must be -1, or from 1 to 2"),
    ],
)
def test_a_run_that_could_not_start_again_is_refused(tmp_path: Path, sets: tuple[str, ...], says: str) -> None:
    (tmp_path / "hosts").write_text("one slots=2\ntwo slots=1\n")
    sets = tuple(each.replace("hostfile=", f"hostfile={tmp_path}/") for each in sets)
    with pytest.raises(ProblemsError, match=says):
        resolve(tmp_path, "max-restarts=1", *sets)


@pytest.mark.parametrize("sets", [("num_gpus=1",), ("num_gpus=-1",), ("num_gpus=2", "num_nodes=2", "master_addr=one")])
def test_a_spare_host_needs_no_more_than_the_others(tmp_path: Path, sets: tuple[str, ...]) -> None:
    (tmp_path / "hosts").write_text("one slots=2\ntwo slots=2\n")
    places = (f"data-path={tmp_path}/none", f"hostfile={tmp_path}/hosts")
    keys = {each.partition("=")[0]: each for each in (*ALONE, *SPARE, *places, *sets)}
    resolved = resolve(tmp_path, "max-restarts=1", "save=there", *keys.values())
    (start,) = starts(resolved.config, resolved.plan, [tmp_path / "run.yml"], [*keys.values()], None)
    restarts: Any = getattr(start, "__self__")  # noqa: B009 the object of a bound method
    assert restarts.shape.count == (2 if "num_nodes=2" in sets else 1)
    assert len(restarts.look()[1]) == 4


def test_the_spare_hosts_are_named(tmp_path: Path) -> None:
    """Those beyond num-nodes that have enough slots."""
    lines = ["one slots=2", "small slots=1", *(f"h{number} slots=2" for number in range(1, 11))]
    (tmp_path / "hosts").write_text("\n".join(lines) + "\n")
    sets = ("save=there", *ALONE, "num_gpus=2", "num_nodes=1", f"hostfile={tmp_path}/hosts", "launcher=pdsh")
    resolved = resolve(tmp_path, "max-restarts=1", *sets)
    notes = [each.message for each in resolved.notes if each.key == "max-restarts"]
    assert notes == ["may replace hosts that fail by the spare h1, h2, h3, h4, h5, h6, h7, h8 and 2 more"]
    assert resolved.plan.cluster.world_size == 2


def test_a_start_among_several_has_the_slots_that_were_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STARTED, "1")
    resolved = resolve(tmp_path, "max-restarts=1", "save=there", *ALONE, "num_gpus=-1", "include=localhost:0")
    assert resolved.plan.cluster.world_size == 1
    assert starts(resolved.config, resolved.plan, [tmp_path / "run.yml"], [], None) == []
    monkeypatch.delenv(STARTED)
    free = resolve(tmp_path, "max-restarts=1", "save=there", *ALONE, "num_gpus=-1")
    sets = [f"data-path={tmp_path}/none"]
    assert len(starts(free.config, free.plan, [tmp_path / "run.yml"], sets, None)) == 1


def test_show_prints_batch_and_numbers_of_ranks(tmp_path: Path) -> None:
    config = tmp_path / "run.yml"
    config.write_text(CONFIG, encoding="utf-8")
    command = [sys.executable, "-m", "neox_core", "config", "show", str(config), "--set", "data-path=none"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "24 samples a step on 1, 2, 3, 4, 6, 8 and 12 ranks" in done.stdout + done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("batch.train_batch")] == ["24"]


def test_a_copy_over_several_ranks_counts_once(tmp_path: Path) -> None:
    wide = "elasticity.model_parallel_size=2", "elasticity.num_gpus_per_node=2", "model-parallel-size=2"
    batch = resolve(tmp_path, *wide).plan.batch
    assert (batch.data_parallel, batch.train_batch) == (2, 24)


def test_without_enabled_the_batch_keys_count(tmp_path: Path) -> None:
    resolved = resolve(tmp_path, "elasticity.enabled=false", "train_batch_size=20")
    assert resolved.plan.batch.train_batch == 20
    assert not resolved.plan.callbacks


def test_ignored_batch_keys_are_noted(tmp_path: Path) -> None:
    keys = "train_batch_size=20", "gradient_accumulation_steps=1", "elasticity.ignore_non_elastic_batch_info=true"
    resolved = resolve(tmp_path, *keys)
    assert resolved.plan.batch.train_batch == 24
    noted = [each.key for each in resolved.notes if each.message == "is ignored: elasticity chooses the batch"]
    assert noted == ["train_batch_size", "gradient_accumulation_steps"]


REFUSED = {
    ("num_gpus=5", "version=0.1"): "do not divide over 5 ranks (take 3, 4, 6 or 8 ranks, the nearest that fit)",
    ("num_gpus=5",): "the nearest that fit; without elasticity these ranks could take 30 samples, with other losses",
    ("num_gpus=13",): "take 8 or 12 ranks, the nearest that fit;",
    (
        "num_gpus=4",
        "min_gpus=6",
    ): "4 is not from min_gpus 6 to max_gpus 10000 (take 6 or 8 ranks, the nearest that fit)",
    ("num_gpus=4", "num_gpus_per_node=3"): "4 ranks are not whole nodes of 3 (take 3, 6 or 12 ranks, the nearest",
    ("train_batch_size=24",): "train_batch_size: contradicts elasticity, which chooses the batch",
    ("gas=2",): "gas: contradicts elasticity",
    ("batch-size=3",): "batch-size: contradicts elasticity",
    ("micro_batch_sizes=[31]",): "elasticity.micro_batch_sizes: 31 is more than max_train_batch_size, 30",
    ("micro_batch_sizes=[]",): "elasticity.micro_batch_sizes: must be 1 to 64 numbers from 1 to 2,147,483,647",
    ("micro_batch_sizes=[2, 0]",): "elasticity.micro_batch_sizes: must be 1 to 64 numbers from 1 to 2,147,483,647",
    ("={enabled: true, micro_batch_sizes: [2]}",): "elasticity.max_train_batch_size: is required while elasticity",
    ("={enabled: true, max_train_batch_size: 30}",): "elasticity.micro_batch_sizes: is required while elasticity",
    ("min_gpus=5", "max_gpus=4"): "elasticity.min_gpus: 5 is more than max_gpus, 4",
    ("min_gpus=17", "max_gpus=17"): "no batch of at most 30 samples fits (raise it, or min_gpus",
    ("min_gpus=0",): "elasticity.min_gpus: must be",
    ("version=0.3",): "elasticity.version: must be",
    ("num_gpus_per_node=3", "model_parallel_size=2"): "elasticity.num_gpus_per_node: 3 cannot be divided by",
    ("model_parallel_size=2", "num_gpus_per_node=2"): "is 2, and the ranks of a copy of the model are 1 (set it to 1)",
    ("model-parallel-size=2",): "elasticity.model_parallel_size: is 1, and the ranks of a copy of the model are 2",
    ("version=0.1", "num_gpus_per_node=2"): "elasticity.num_gpus_per_node: does nothing with version 0.1",
    ("version=0.1", "model_parallel_size=2"): "elasticity.model_parallel_size: does nothing with version 0.1",
    ("num_gpus_per_node=16",): "a node of 16 copies takes 48 samples at once, more than 30",
    ("min_tme=3",): "elasticity.min_tme: unknown key (did you mean 'min_time'?)",
}
OUTSIDE = ("num_gpus", "train_batch_size", "gas", "batch-size", "model-parallel-size")


@pytest.mark.parametrize("sets", REFUSED)
def test_what_cannot_work_is_refused_before_the_start(sets: tuple[str, ...], tmp_path: Path) -> None:
    inner = (each if each.partition("=")[0] in OUTSIDE else f"elasticity.{each}".replace(".=", "=") for each in sets)
    with pytest.raises(ProblemsError) as caught:
        resolve(tmp_path, *inner)
    assert REFUSED[sets] in str(caught.value)


def test_train_notes_the_key_of_elastic(tmp_path: Path) -> None:
    (note,) = [each for each in resolve(tmp_path, "elasticity.min_time=5").notes if each.key == "elasticity.min_time"]
    assert (note.severity, note.message) == ("note", "is read by `neox elastic` only")


def test_several_faults_are_one_report(tmp_path: Path) -> None:
    with pytest.raises(ProblemsError) as caught:
        resolve(
            tmp_path,
            "train_batch_size=4",
            "elasticity.micro_batch_sizes=[31]",
            "elasticity.max_gpus=1",
            "elasticity.min_gpus=2",
        )
    report = str(caught.value)
    for said in ("train_batch_size: contradicts", "31 is more than", "min_gpus: 2 is more than max_gpus, 1"):
        assert report.count(said) == 1


def test_either_spelling_of_the_preference(tmp_path: Path) -> None:
    small = "elasticity.micro_batch_sizes=[5, 7]", "elasticity.max_train_batch_size=9", "num_gpus=1"
    assert resolve(tmp_path, *small).plan.batch.train_batch == 7
    assert resolve(tmp_path, *small, "elasticity.prefer_larger_batch=false").plan.batch.train_batch == 5
    assert resolve(tmp_path, *small, "elasticity.prefer_large_batch=false").plan.batch.train_batch == 5


def test_checkpoints_keep_the_numbers_of_ranks(tmp_path: Path) -> None:
    def after(ranks: int, step: int, state: dict[str, Any] | None) -> dict[str, Any]:
        run: Any = SimpleNamespace(num_ranks=ranks, run_dir=tmp_path)
        made = History(run, *[None] * 2)  # type: ignore[arg-type]  # not read here
        if state is not None:
            made.restore(json.loads(json.dumps(state)))
        made.start(step)
        return made.state()

    state = after(3, 7, after(4, 5, after(4, 0, None)))
    first = {"from_step": 0, "world_size": 4}
    assert state == {"world_sizes": [first, {"from_step": 7, "world_size": 3}]}
    # a run that resumes at the step of the last change makes another one in its place
    assert after(2, 7, state) == {"world_sizes": [first, {"from_step": 7, "world_size": 2}]}
    assert after(4, 7, state) == {"world_sizes": [first]}

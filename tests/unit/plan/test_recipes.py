"""Every recipe of `configs/` resolves on the cluster that it states."""

import re
from pathlib import Path
from typing import Any

import pytest
from neox_gpt_neox.migrate import migrate

from neox_core.hooks.loader import load_plugins
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run

CONFIGS = Path(__file__).parents[3] / "configs"
SIZES = ("19M", "49M", "125M", "350M", "760M", "1.3B", "2.7B", "6.7B", "13B", "20B", "175B")
PYTHIA = ("14M", "31M", "70M", "160M", "410M", "1B", "1.4B", "2.8B", "6.9B", "12B")
RECIPES = [CONFIGS / f"{size}.yml" for size in SIZES] + [CONFIGS / "pythia" / f"{size}.yml" for size in PYTHIA]
CLUSTER = re.compile(r"^# cluster: (\d+) hosts? x (\d+) GPUs\b", re.MULTILINE)


@pytest.fixture(scope="module")
def plugins() -> Any:
    return load_plugins()


def test_every_file_is_tested() -> None:
    small = {CONFIGS / "quickstart.yml", *(CONFIGS / "retrieval" / f"{name}.yml" for name in ("bert", "retriever"))}
    assert {*RECIPES, *small} == set(CONFIGS.rglob("*.yml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_a_recipe_resolves_on_its_cluster(recipe: Path, plugins: Any, tmp_path: Path) -> None:
    stated = CLUSTER.search(recipe.read_text())
    assert stated
    num_hosts, num_gpus = map(int, stated.groups())
    (tmp_path / "hosts").write_text("".join(f"worker-{index} slots={num_gpus}\n" for index in range(num_hosts)))
    sets = [f"hostfile={tmp_path}/hosts"]
    resolved = prepare_run([recipe], sets, catalog=plugins, machine=Machine(num_gpus, 64), start=False)
    notes = {note.key for note in resolved.notes if not (note.key == "lr-decay-iters" and "min-lr" in note.message)}
    assert notes <= {"data-path", "vocab-file", "merge-file"}
    plan = resolved.plan
    imagined = prepare_run([recipe], catalog=plugins, start=False, cluster=f"{num_hosts}x{num_gpus}").plan
    assert imagined.batch == plan.batch
    assert imagined.engine == plan.engine
    assert [(host.name, host.slots) for host in plan.cluster.hosts] == [
        (f"worker-{index}", num_gpus) for index in range(num_hosts)
    ]
    assert plan.cluster.device == "cuda"
    batch = plan.batch
    model_ranks = plan.cluster.tensor_parallel * plan.cluster.pipeline_parallel
    assert batch.data_parallel * model_ranks == num_hosts * num_gpus
    assert batch.micro_batch * batch.gradient_accumulation * batch.data_parallel == batch.train_batch
    assert plan.run_dir == f"checkpoints/{recipe.stem if recipe.parent == CONFIGS else f'pythia-{recipe.stem}'}"


@pytest.mark.parametrize("recipe", sorted(CONFIGS.rglob("*.yml")), ids=lambda path: path.stem)
def test_a_recipe_is_in_todays_spelling(recipe: Path, plugins: Any) -> None:
    assert migrate([recipe], plugins).text == recipe.read_text()

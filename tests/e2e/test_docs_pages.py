"""The whole examples of docs/plugins/ are built from their pages and pass their own tests; their configs are valid."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from neox_core.errors import NeoxError
from neox_core.hooks.loader import load_plugins
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs/plugins"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md"))
OF_GPT = ("activation", "attention-dropout", "gpt-j-residual", "hidden-dropout", "init-method-std", "intermediate-size")
OF_GPT += ("max-position-embeddings", "no-weight-tying", "norm", "num-attention-heads", "pos-emb")
"""Keys of the quickstart that another architecture does not have."""
CONFIG = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_the_example_of_a_page_passes_its_tests(page: str, build_page: Any, tmp_path: Path) -> None:
    files = build_page(page)
    assert any(path.endswith("/plugin.py") for path in files), "no listing module"
    run = 0
    for path, text in files.items():
        if path.startswith("tests/"):
            names: dict[str, Any] = {"__name__": "a_test_of_the_page"}
            exec(compile(text, str(tmp_path / path), "exec"), names)
            for name, test in list(names.items()):
                if name.startswith("test_"):
                    wanted = inspect.signature(test).parameters
                    test(**({"tmp_path": tmp_path} if "tmp_path" in wanted else {}))
                    run += 1
    assert run, "the page tests nothing"


@pytest.mark.parametrize("page", PAGES)
def test_the_configs_of_a_page_are_valid(page: str, build_page: Any, tmp_path: Path) -> None:
    build_page(page)
    for index, text in enumerate(CONFIG.findall((FOLDER / f"{page}.md").read_text("utf-8"))):
        config = tmp_path / f"{index}.yml"
        base = yaml.safe_load((ROOT / "configs/quickstart.yml").read_text("utf-8"))
        base |= {"num-layers": 4, "data-path": str(tmp_path / "none")}
        del base["weight-decay"]  # which not every optimizer has
        changes = yaml.safe_load(text)
        if "architecture" in changes:
            base = {key: value for key, value in base.items() if key not in OF_GPT}
        if "tokenizer-type" in changes:
            del base["vocab-file"], base["merge-file"]
        config.write_text(yaml.safe_dump({**base, **changes}))
        prepare_run([config], [], catalog=load_plugins(), machine=Machine(0, 2), start=False)


def test_a_pipeline_refuses_an_objective_of_several_passes(build_page: Any, tmp_path: Path) -> None:
    build_page("objective")
    config = tmp_path / "c.yml"
    base = yaml.safe_load((ROOT / "configs/quickstart.yml").read_text("utf-8"))
    config.write_text(yaml.safe_dump({**base, "num-layers": 4, "data-path": str(tmp_path / "none"), "num-gpus": 2}))

    def resolve(*sets: str) -> Any:
        return prepare_run([config], sets, catalog=load_plugins(), machine=Machine(0, 4), start=False)

    said = "objective: sampled makes 2 passes over the model for a batch, and a pipeline makes one"
    with pytest.raises(NeoxError, match=said):
        resolve("objective=sampled", "pipe-parallel-size=2")
    assert resolve("objective=sampled", "model-parallel-size=2").plan.objective.name == "sampled"
    plan = resolve("objective=smooth", "pipe-parallel-size=2", "smoothing=0.3").plan
    assert plan.objective.settings["smoothing"] == 0.3

"""A resumed run reports what it computes differently, by what each key says that it changes."""

import json
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen
from neox_reference.keys import own_keys

from neox_core.api import Component, hookimpl, setting
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import to_plain
from neox_core.plan.stored.saved import sealed
from neox_core.plan.stored.schedule import schedule_terms


@frozen
class Block:
    depth: int = setting(1, help="Numbers.")
    tiles: int = setting(1, help="Speed.", changes="speed")


@frozen
class FastSettings:
    lr: float = setting(1e-3, help="Peak.")
    rho: float = setting(0.5, help="Numbers.")
    fused: bool = setting(False, help="Speed.", changes="speed")
    block: Block = setting(Block(), help="Some of each.")


class Fast:
    @hookimpl
    def neox_optimizers(self) -> list[Component]:
        return [Component("Fast", "math:floor", FastSettings)]


Changed = Callable[..., list[str]]
FAST = "optimizer.type=Fast"


@pytest.fixture
def changed(tmp_path: Path, text: str, plugins: Any, everything: Any) -> Changed:
    """What is said of a run with some `--set`s that resumes from one with others."""
    (tmp_path / "c.yml").write_text(text)

    def _changed(then: list[str], now: list[str], catalog: Any = None, **edited: Any) -> list[str]:
        catalog = catalog or plugins(everything=everything, fast=Fast())
        plan = prepare_run([tmp_path / "c.yml"], then, catalog=catalog).plan
        state = {"step": 2, "consumed_samples": 2 * plan.batch.train_batch, "consumed_tokens": 0}
        folder = tmp_path / "saved"
        folder.mkdir(exist_ok=True)
        rest = {"plugins": {}, "neox_version": "0.1.0", "skipped_steps": 0, "loss_scaler": {}, "options": []}
        stored = {"state.json": json.dumps({"state": state, "schedule": schedule_terms(plan.optim), **rest})}
        stored["run.json"] = json.dumps({**to_plain(plan), **edited})
        for name, content in stored.items():
            (folder / name).write_text(content)
        seals = {
            name: {"size": len(content), "sha256": sha256(content.encode()).hexdigest()}
            for name, content in stored.items()
        }
        (folder / "manifest.json").write_bytes(sealed({"step": 2, "files": seals}))
        resume = [f"load={folder}", "override-lr-scheduler=true"]
        resolved = prepare_run([tmp_path / "c.yml"], [*now, *resume], catalog=catalog, checked=True)
        ends = f" in the run that wrote {folder}: the losses change"
        return [f"{each.key} {each.message.removesuffix(ends)}" for each in resolved.notes if ends in each.message]

    return _changed


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        ([], [], []),
        ([], ["hidden-dropout=0.25"], ["hidden-dropout is 0.25, and was 0.1"]),
        (["hidden-dropout=0.25"], [], ["hidden-dropout is 0.1, and was 0.25"]),
        ([], ["gpt-j-residual=true"], ["gpt-j-residual is true, and was false"]),
        ([], ["seed=9"], ["seed is 9, and was 1234"]),
        ([], ["split=50,25,25"], ["split is [0.5, 0.25, 0.25], and was [0.969, 0.03, 0.001]"]),
        ([], ["norm=rmsnorm"], ["norm is rmsnorm (everything unknown), and was layernorm (everything unknown)"]),
        ([], ["layernorm-epsilon=0.5"], ["layernorm-epsilon is 0.5, and was 1e-05"]),
        ([], ["gradient_clipping=7"], ["gradient_clipping is 7.0, and was 1.0"]),
        ([], ["bf16={enabled: true}"], ['bf16.enabled is "bf16", and was "fp32"']),
        ([], ["optimizer.params.eps=0.5"], ["optimizer.params.eps is 0.5, and was 1e-08"]),
        ([], ["weight-decay=0.5"], ["weight-decay is 0.5, and was 0.01"]),
        ([FAST], [FAST, "optimizer.params.rho=0.1"], ["optimizer.params.rho is 0.1, and was 0.5"]),
        ([FAST], [FAST, "optimizer.params.block.depth=2"], ["optimizer.params.block.depth is 2, and was 1"]),
        ([], ["prescale_gradients=true"], ["prescale_gradients is true, and was false"]),
        ([], ["gradient_predivide_factor=2"], ["gradient_predivide_factor is 2.0, and was 1.0"]),
        (
            [],
            ["deepspeed_extra_args={seq_parallel_communication_data_type: fp16}"],
            ['deepspeed_extra_args is "fp16", and was none'],
        ),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value) or "nothing",
)
def test_what_changes_numbers_is_reported(changed: Changed, then: list[str], now: list[str], said: list[str]) -> None:
    assert changed(then, now) == said


def test_a_blend_is_compared_without_the_places_of_its_datasets(changed: Changed, dataset: str, tmp_path: Path) -> None:
    moved = f"{dataset}-moved"
    for end in (".bin", ".idx"):
        Path(moved + end).write_bytes(Path(dataset + end).read_bytes())
    config = tmp_path / "c.yml"
    config.write_text(re.sub("data-path:.*", "data-impl: mmap", config.read_text()))
    alone = [f"valid-data-paths=[{dataset}]", f"test-data-paths=[{dataset}]"]
    then = [*alone, f"train-data-paths=[{dataset}]", "train-data-weights=[1]"]
    other_place = [*alone, f"train-data-paths=[{moved}]", "train-data-weights=[1]"]
    assert changed(then, other_place) == []
    (said,) = changed(then, [*alone, f"train-data-paths=[{dataset}]", "train-data-weights=[2]"])
    assert "x 2.0]" in said
    assert "x 1.0]" in said


@pytest.mark.parametrize(
    "now",
    [
        ["compile=true"],
        ["compile=auto"],
        ["num-workers=3"],
        ["save-interval=7", "save=here"],
        ["eval-iters=3", "log-interval=7"],
        ["init-method-std=9"],
        ["train-iters=50", "optimizer.params.lr=2e-3"],
        ["zero_optimization.stage=1"],
        ["checkpoint-activations=true"],
        ["zero_optimization={stage: 1, reduce_bucket_size: 1000}"],
    ],
    ids=" ".join,
)
def test_what_changes_none_is_not(changed: Changed, now: list[str]) -> None:
    assert [said for said in changed([], now) if not said.startswith("optimizer.params.lr ")] == []


def test_a_setting_that_changes_speed_may_change(changed: Changed) -> None:
    assert changed([FAST], [FAST, "optimizer.params.fused=true", "optimizer.params.block.tiles=4"]) == []
    sm3 = ["optimizer.type=SM3"]
    assert changed(sm3, [*sm3, "optimizer.params.fused=true"], load_plugins()) == []
    (said,) = changed(sm3, [*sm3, "optimizer.params.eps=0.5"], load_plugins())
    assert said.startswith("optimizer.params.eps is 0.5")


def test_kernels_and_the_engine_change_speed() -> None:
    settings = {each.path: each.changes for each in own_keys(load_plugins().registry)}
    assert {settings[key] for key in ("kernels", "engine", "layernorm_fusion", "sparse_gradients")} == {"speed"}


@pytest.mark.parametrize(
    "edited",
    [
        {"data": [1]},
        {"data": {"train": [{"weight": 1}, 5], "split": {"\x1b": None}}},
        {"model": {"norm": 3, "hidden_dropout": {"name": []}, "recompute": "all"}},
        {"optim": {"optimizer": {"name": "Adam", "plugin": "everything", "settings": [1]}}},
        {"engine": [5]},
        {"engine": {"\x1b": {"\x1b": "\x1b" * 9_000}, "zero_optimization": 7, "fp16": {"loss_scale": {}}}},
        {
            "optim": {
                "optimizer": {"name": "Adam", "plugin": "everything", "settings": {"eps": {"\x1b": "\x1b" * 9_000}}}
            }
        },
    ],
    ids=lambda edited: json.dumps(edited)[:40],
)
def test_a_run_json_that_anybody_may_have_written_is_told_in_lines(changed: Changed, edited: Any) -> None:
    said = changed([], [], **edited)
    assert all(line.isprintable() and len(line) < 1_000 for line in said)

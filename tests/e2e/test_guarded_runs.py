"""Runs that rewind: killed ones end on the same bits, in every layout as a process that never made the detour."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from safetensors.torch import load_file

from neox_core.data.samples import open_counted
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import ComponentRef, RunPlan, write_runfile

pytestmark = pytest.mark.ranks

STEPS, BATCH = 45, 4
BASE = f"""
engine: plain
device: cpu
num-layers: 2
hidden-size: 32
num-attention-heads: 2
seq-length: 32
max-position-embeddings: 32
pos-emb: rotary
num-workers: 0
padded-vocab-size: 128
peak-tflops: 1
optimizer: {{type: Adam, params: {{lr: 1.0e-2}}}}
gradient_clipping: 1.0
lr-decay-style: constant
warmup: 0.0
hidden-dropout: 0.1
train_batch_size: {BATCH}
train-iters: {STEPS}
eval-interval: 15
eval-iters: 1
log-interval: 3
save-interval: 5
monitors: [jsonl]
spike_guard: {{enabled: true, window: 10, least: 6, deviations: 3, margin: 0.5}}
evaluators: [perplexity_by_dataset]
"""
TWO = {"num_gpus": 2}
ZERO = {"engine": "deepspeed"}
BEHIND = {"checkpoint.background": True}
LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "plain-2": TWO,
    "tensor": {**TWO, **BEHIND, "model-parallel-size": 2},
    "pipe": {**TWO, **ZERO, **BEHIND, "pipe-parallel-size": 2},
    "zero-1-bf16": {**TWO, **ZERO, "zero_optimization": {"stage": 1}, "bf16": {"enabled": True}},
    "zero-3": {**TWO, **ZERO, **BEHIND, "zero_optimization": {"stage": 3}},
    "zero-0": {**ZERO, "zero_optimization": {"stage": 0}},
}
KILLS: dict[str, list[list[Any]]] = {
    "before the first rewind": [["_rewind", 1]],
    "after the first rewind": [["step", 13]],
    "at the second rewind": [["_rewind", 2]],
    "before the save after it": [["check", 5]],
    "after that save": [["save", 6]],
    "inside the first rewind": [["_restore", 2]],
    "three times": [["_rewind", 2], ["_rewind", 1], ["step", 9]],
}
FAULTS: dict[str, tuple[list[int], str]] = {
    "RaisesOnOneRank": ([1, 1], "callback faulty:RaisesOnOneRank 1 failed"),
    "AsksOnOneRank": ([1, 1], "asks for nothing, stop on the ranks, in their order: not the same"),
    "StateOfTensors": ([1, 1], r"StateOfTensors 1: state\(\) is not what JSON holds.*\(at the event `state`\)"),
    "LeavesACollective": ([1, 1], "LeavesACollective"),
    "RewindsUnasked": ([1, 1], r"save\(\) asks to rewind, which it may not"),
    "EvaluatesOnOneRank": (
        [1, 1],
        r"1 failed in evaluate\(\), which returns a float for each name: ZeroDivisionError: no such number",
    ),
    "LeavesGradientsOff": (
        [1, 1],
        r"LeavesGradientsOff 1 failed: ValueError: it leaves torch.set_grad_enabled\(\) or .*\(at the event `step`\)",
    ),
    "MeasuresTooMuch": ([1, 1], r"measured\(\) gives 100,000 numbers: a component gives 1,000 at most"),
    "EvaluatesToText": ([1, 1], r"evaluate\(\) gives a float for each name, .*, not {'score': 'good'}"),
    "EvaluatesWithoutDropout": ([1, 1], r"evaluate\(\) leaves the model in evaluation mode"),
    "Nowhere": ([1, 1], "`where` is one of rank 0, every rank, collective, not 'somewhere'"),
}
"""By callback of faulty.py: how the two ranks end, and what one of them says."""
LOST_PEER = ("Connection closed by peer", "Connection reset by peer", "Timed out waiting")


class Lab:
    def __init__(self, folder: Path) -> None:
        self.folder, self.catalog = folder, load_plugins()
        self.cases: list[dict[str, Any]] = []
        entry = self.catalog.registry.find("data backend", "mmap")
        writer = entry.load()(entry.component.settings()).create(folder / "tokens", 128)
        draw = np.random.default_rng(0)
        for document in range(400):
            noise = document % 25 == 7
            writer.add_document((draw.integers(0, 120, 33) if noise else np.full(33, document % 5)).tolist())
        writer.close()
        for name, pattern in {"a": 3, "b": 5}.items():
            writer = entry.load()(entry.component.settings()).create(folder / name, 128)
            for document in range(40):
                writer.add_document([document % pattern] * 33)
            writer.close()
        (folder / "base.yml").write_text(BASE)

    def plan(self, name: str, keys: dict[str, Any]) -> RunPlan:
        """Resolve a run as `neox train` does, and write its run file."""
        keys = {"num_gpus": 1, "save": str(self.folder / name), **keys}
        if "train-data-paths" not in keys:
            keys |= {"data-path": str(self.folder / "tokens"), "split": "90,10,0"}
        sets = [f"{key}={json.dumps(value)}" for key, value in keys.items()]
        plan = prepare_run([self.folder / "base.yml"], sets, catalog=self.catalog, resume="auto").plan
        write_runfile(plan, Path(plan.run_dir, "run.json"))
        return plan

    def run(self, name: str, keys: dict[str, Any], callback: str = "", **case: Any) -> None:
        """callback: of faulty.py, in place of the guard."""
        plan = self.plan(name, keys)
        if callback:
            kind = "evaluator" if callback.startswith("Evaluates") else "callback"
            made = (ComponentRef(kind, callback, "faulty", "1", f"faulty:{callback}"),)
            plan = evolve(plan, callbacks=(), evaluators=made) if kind == "evaluator" else evolve(plan, callbacks=made)
            write_runfile(plan, Path(plan.run_dir, "run.json"))
        self.cases.append({"file": f"{plan.run_dir}/run.json", "ranks": plan.cluster.world_size, **case})

    def state(self, name: str, step: int = STEPS) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.folder / name / f"step-{step:08d}/state.json").read_text())
        return state["state"]

    def tensors(self, name: str, step: int = STEPS) -> dict[str, Any]:
        files = sorted((self.folder / name / f"step-{step:08d}").glob("*.safetensors"))
        return {f"{file.name}/{key}": tensor for file in files for key, tensor in load_file(file).items()}

    def assert_same(self, one: str, other: str, step: int = STEPS) -> None:
        first, second = self.tensors(one, step), self.tensors(other, step)
        assert first.keys() == second.keys()
        assert [name for name, tensor in first.items() if not tensor.equal(second[name])] == []


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, start: Callable[[str, Path, Any], None]) -> Lab:
    lab = Lab(tmp_path_factory.mktemp("guarded"))
    for name, keys in LAYOUTS.items():
        lab.run(name, keys)
    for index, (name, kills) in enumerate(KILLS.items()):
        keys = BEHIND if index % 2 else {}
        for kill in kills:
            lab.run(name, keys, kill=kill)
        lab.run(name, keys)
    for name, (codes, _) in FAULTS.items():
        lab.run(name, TWO, callback=name, codes=codes)
    for _ in range(2):
        lab.run("watched", {**TWO, "log-interval": 1}, callback="Watches")
    for keys in ({"exit-interval": 10}, {"exit-interval": 15}):
        open_choice = {**TWO, "log-interval": 1, "compile": "auto", **keys}
        lab.run("compiled", open_choice, callback="ChoosesByTheSlowest")
    both = {"train-data-paths": [str(lab.folder / "tokens")]}
    for name, sets in {"one": ["a"], "two": ["b", "a"]}.items():
        valid = {**both, "valid-data-paths": [str(lab.folder / each) for each in sets], "spike_guard.enabled": False}
        lab.run(name, valid)
        lab.run(f"{name}-2", {**TWO, **valid})
    start("guarded.py", lab.folder, lab.cases)
    lab.cases.clear()
    for name, keys in LAYOUTS.items():  # from the checkpoint before the first rewind, in a fresh process
        made = lab.state(name)["interventions"]
        to = made[0]["to"]
        shutil.copytree(lab.folder / name / f"step-{to:08d}", lab.folder / f"{name}-told/step-{to:08d}")
        told = [each for each in made if each["to"] == to]
        lab.run(f"{name}-told", {**keys, "exit-interval": to + 5}, told=told)
    start("guarded.py", lab.folder, lab.cases)
    return lab


def test_it_rewinds_more_than_once(lab: Lab) -> None:
    made = lab.state("plain")["interventions"]
    assert len(made) > 2
    assert lab.state("plain")["callbacks"]["neox-spike-guard:spike_guard"]["rewinds_made"] == len(made)
    lines = map(json.loads, (lab.folder / "plain/metrics.jsonl").read_text().splitlines())
    told = [line for line in lines if "rewound_from" in line]
    assert [(each["at"], each["to"], each["first"], each["last"] - 1) for each in made] == [
        (each["rewound_from"], each["step"], each["skipped_first_sample"], each["skipped_last_sample"]) for each in told
    ]


def test_it_reads_the_order_of_the_run_without_the_samples_it_skips(lab: Lab) -> None:
    made = lab.state("plain")["interventions"]
    skipped = {index for each in made for index in range(each["first"], each["last"])}
    plan = lab.plan("order", {})
    samples = open_counted(plan, "train", rounds=lab.state("plain")["data_rounds"])
    order = [index for index in range(10 * STEPS * BATCH) if index not in skipped][: STEPS * BATCH]
    read = np.empty((len(order), 33), dtype=np.int64)
    for index, into in zip(order, read, strict=True):
        samples.read(index, into)
    seen = [json.loads(line) for line in (lab.folder / "plain/seen.jsonl").read_text().splitlines()]
    last = list(kept(seen, made))
    assert np.array_equal(np.array(last).reshape(-1, 33), read)


def kept(seen: list[Any], made: list[dict[str, int]]) -> Iterator[Any]:
    """Of all steps that were trained, those that were not undone."""
    steps: list[Any] = []
    rewinds = iter(made)
    following = next(rewinds, None)
    for each in seen:
        steps.append(each)
        while following is not None and len(steps) == following["at"]:
            del steps[following["to"] :]
            following = next(rewinds, None)
    yield from steps


@pytest.mark.parametrize("name", KILLS)
def test_a_killed_run_ends_as_one_that_was_left_alone(lab: Lab, name: str) -> None:
    lab.assert_same(name, "plain")
    assert lab.state(name) == lab.state("plain")


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_rewind_leaves_nothing_behind(lab: Lab, name: str) -> None:
    """A process that begins at the checkpoint, and knows the interventions, comes to the same next checkpoint."""
    to = lab.state(name)["interventions"][0]["to"]
    lab.assert_same(name, f"{name}-told", to + 5)


def test_every_layout_makes_the_same_interventions(lab: Lab) -> None:
    made = lab.state("plain")["interventions"]
    for name in ("plain-2", "tensor", "pipe", "zero-3"):
        assert lab.state(name)["interventions"] == made, name


def test_perplexity_of_the_one_dataset_is_that_of_validation_in_every_layout(lab: Lab) -> None:
    for name in LAYOUTS:
        lines = [json.loads(line) for line in (lab.folder / name / "metrics.jsonl").read_text().splitlines()]
        ours = [line["valid_tokens_loss"] for line in lines if "valid_tokens_loss" in line]
        assert len(ours) == 3
        assert ours == [line["valid_loss"] for line in lines if "valid_loss" in line]


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_callback_ends_all_ranks_and_names_it(lab: Lab, name: str) -> None:
    said = [(lab.folder / name / f"said-{rank}.txt").read_text() for rank in range(2)]
    assert re.search(FAULTS[name][1], "".join(said)), said
    if name == "EvaluatesOnOneRank":  # so the launcher reports the error of the other rank
        assert any(words in said[0] for words in LOST_PEER), said[0]
    if name == "RaisesOnOneRank":
        assert re.search("ZeroDivisionError: no such step.*at the event `step`", said[1], re.DOTALL)
        assert "failed on rank 1 (see the log of that rank" in said[0] or "failed on rank 1" in said[0]
        assert not (lab.folder / name / "step-00000010").exists()


def test_events_come_in_their_order_and_what_is_asked_is_done(lab: Lab) -> None:
    first, second = sorted((lab.folder / "watched").glob("told-*.txt"), key=lambda each: each.stat().st_mtime)
    assert first.read_text().splitlines() == [
        "start 0",
        *(f"log of {step} at {step}" for step in range(1, 6)),
        "save after  at 5",
        "saved step-00000005 5",
        *(f"log of {step} at {step}" for step in range(6, 9)),
        "save after  at 8",
        "saved step-00000008 8",
        *(f"log of {step} at {step}" for step in range(9, 11)),
        "save after  at 10",
        "saved step-00000010 10",
        "log of 11 at 11",
        "save after  at 11",
        "saved step-00000011 11",
        "end 11",
    ]
    # the state of step 11 counts the save of that step, not what came after
    assert second.read_text().splitlines()[:3] == ["restored 19 0", "start 11", "log of 12 at 12"]


def test_ranks_choose_together_whether_to_compile_and_a_resumed_run_does_the_same(lab: Lab) -> None:
    said = (lab.folder / "compiled/said-0.txt").read_text()
    assert said.count("the run continues compiled\n") == 1
    assert said.count("the run continues compiled, as was chosen before the checkpoint") == 1
    assert "a step takes 2 s, compiled 1 s" in said
    for step in (10, 15):
        assert lab.state("compiled", step)["callbacks"] == {"faulty:ChoosesByTheSlowest": {"compiled": True}}
    assert numbers(lab, "compiled", "plain_step_s") == [2.0]
    assert numbers(lab, "compiled", "compiled_step_s") == [1.0]


def numbers(lab: Lab, run: str, name: str) -> list[float]:
    lines = [json.loads(line) for line in (lab.folder / run / "metrics.jsonl").read_text().splitlines()]
    return [line[name] for line in lines if name in line]


def test_perplexity_of_a_dataset_is_the_validation_loss_of_a_run_with_that_dataset_alone(lab: Lab) -> None:
    alone = numbers(lab, "one", "valid_loss")
    assert len(alone) == 3
    assert numbers(lab, "two", "valid_a_loss") == alone
    assert numbers(lab, "two", "valid_b_loss") != alone
    assert numbers(lab, "two", "valid_a_perplexity") == pytest.approx(np.exp(alone))
    for name in ("valid_a_loss", "valid_b_loss"):
        assert numbers(lab, "two-2", name) == pytest.approx(numbers(lab, "two", name), abs=1e-5)

"""Ten recipes of GPT-NeoX as they are, scaled down by `--set`, train, resume and generate."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gpt_neox_facts import written
from neox_gpt.generation.main import Job, generate
from neox_gpt.generation.sampling import Sampling
from neox_gpt.saved import saved_run
from tokenizers import ByteLevelBPETokenizer

from neox_core.hooks.loader import load_plugins
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import write_runfile

pytestmark = pytest.mark.ranks

WORDS = "zero one two three four five six seven eight nine ten eleven"
SMALL = """
    hidden-size=64 num-attention-heads=4 num-layers=2 seq-length=32 max-position-embeddings=32
    train-iters=20 lr-decay-iters=20 exit-interval=10 eval-iters=0 num-workers=0 train_micro_batch_size_per_gpu=2
    gradient_accumulation_steps=2 model-parallel-size=1 pipe-parallel-size=1 distributed-backend=gloo
    train-data-paths=null valid-data-paths=null test-data-paths=null
    device=cpu log-interval=1 monitors=[jsonl] peak-tflops=1
"""
BPE = "tokenizer-type=GPT2BPETokenizer vocab-file={0}/bpe-vocab.json merge-file={0}/bpe-merges.txt"
JSON = "tokenizer-type=HFTokenizer vocab-file={0}/tokenizer.json"
LAYERS, FP32, GROUPS = "attention-config=[[[flash], 2]]", "fp16=null", "num-kv-heads=2"
LLAMA = ("llama/train_config", "local_setup")
RECIPES = {
    ("125M", "local_setup"): (FP32,),
    ("49M", "local_setup"): (FP32,),
    ("19M", "local_setup"): (FP32,),
    ("bf16_125M", "local_setup"): (),
    ("pythia/160M", "docker/pythia-paths"): (LAYERS, FP32),
    ("pythia/1B", "docker/pythia-paths"): (LAYERS,),  # its fp16 block says bfloat16
    ("20B",): (FP32,),
    ("llama/7B", *LLAMA): ("intermediate-size=512", "finetune=false", FP32),
    ("llama2/70B", *LLAMA): ("intermediate-size=512", "finetune=false", LAYERS, GROUPS, FP32),
    ("mistral/7B", *LLAMA): ("sliding_window_width=8", "intermediate-size=128", "finetune=false", LAYERS, GROUPS, FP32),
}
"""Files -> what SMALL does not scale down. fp16 does not train on a CPU; `finetune` asks for a checkpoint."""


def test_ten_recipes_of_gpt_neox_train_resume_and_generate(
    tmp_path: Path, start: Callable[[str, Path, Any], None], capsys: pytest.CaptureFixture[str]
) -> None:
    catalog = load_plugins()
    write_text(catalog, tmp_path)
    runs = {files: tmp_path / f"run-{files[0].replace('/', '-')}" for files in RECIPES}
    assert len(runs) == 10
    for until in (10, 20):  # by the same command line, which ends a run at each tenth step
        for files, run in runs.items():
            write_plan(files, run, tmp_path, catalog)
        start("continued.py", tmp_path, [(1, str(run / "run.json")) for run in runs.values()])
        assert {len(losses_of(run)) for run in runs.values()} == {until}
    for run in runs.values():
        losses = losses_of(run)
        assert [*losses] == list(range(1, 21)), run
        assert math.log(300) - 0.35 < losses[1] < math.log(384) + 0.35, run  # rows of the vocabulary, and a spread
        assert losses[20] < losses[1] - 0.05, run
        checkpoint, plan = saved_run(run, catalog)
        assert checkpoint.name == "step-00000020"
        generate(checkpoint, plan, Job(20, "two three", device="cpu", sampling=Sampling(temperature=1.0)))
        text = capsys.readouterr().out
        assert text.startswith("two three"), run
        assert len(text) > len("two three\n"), run


def write_plan(files: tuple[str, ...], save: Path, folder: Path, catalog: Any) -> None:
    """As `neox train` does, with a tokenizer of the kind that is the recipe's; for SentencePiece, another kind."""
    json_of_hf = "docker/pythia-paths" in files or files == ("20B",)
    tokenizer = JSON if json_of_hf else BPE
    sets = [*SMALL.split(), *tokenizer.format(folder).split(), *RECIPES[files]]
    sets += [f"data-path={folder}/tokens", f"save={save}", f"load={save}"]
    sets += [f"tensorboard-dir={folder}/tensorboard", f"log-dir={folder}/logs"]
    plan = prepare_run(written(files, folder), sets, catalog=catalog, machine=Machine(0, 1), resume=None).plan
    assert (plan.checkpoint.resume, plan.train.train_iters) == ("auto", 20)
    write_runfile(plan, save / "run.json")


def losses_of(run: Path) -> dict[int, float]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {each["step"]: each["loss"] for each in lines if "loss" in each}


def write_text(catalog: Any, folder: Path) -> None:
    """A text, a tokenizer of 300 ids in the forms of GPT-2 and of Hugging Face, and the text's ids."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator([WORDS], vocab_size=300, special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer.save_model(str(folder), "bpe")
    tokenizer.save(str(folder / "tokenizer.json"))
    entry = catalog.registry.find("data backend", "mmap")
    writer = entry.load()(entry.component.settings()).create(folder / "tokens", 300)
    for _ in range(40):
        writer.add_document([*tokenizer.encode(f"{WORDS} {WORDS}").ids, tokenizer.token_to_id("<|endoftext|>")])
    writer.close()

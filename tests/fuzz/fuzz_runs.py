"""Combinations of features that nobody has tried: what `config check` admits trains alike in any layout, and resumes.

    python tests/fuzz/fuzz_runs.py FOLDER --seconds 600 --seed 1 [--compiled 0.05]

Each round draws what of a model, its data, optimizer and precision differs from a small base, and two layouts of one to
four ranks. One rank of `plain` trains the config, then the ranks of the first layout: losses and gradient norms have to
be near each other. That run is resumed at its half by both layouts: by its own it has to end on the same bits, by the
other near them. A decoder is exported for transformers, where there is a family for it, which has to give its logits.
What ends otherwise, or not within 100 s, is printed with its config and exits 1; FOLDER keeps its runs. A round takes
about 3 s, compiled half a minute.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

from exports import exported
from forks import forked
from layouts import warm_up
from neox_author.testing import build, load_only
from neox_author.testing.ports import free_port
from plan_answers import CPU
from reads import import_all
from short_runs import noted_run, read_versions_once
from test_short_runs_of_keys import make_data

from neox_core.config.report import ProblemsError
from neox_core.errors import ConfigError
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.loader import load_plugins
from neox_core.plan.resolve import prepare_run
from neox_core.plan.runfile import RunPlan, write_runfile

Options = dict[str, Any]
LIMIT_S, REFUSED = 100.0, 9
STEPS, HALF, BATCH = 4, 2, 8
BASE: Options = {
    "device": "cpu", "engine": "plain", "num_gpus": 1, "num_workers": 0, "data_impl": "mmap", "split": "80,10,10",
    "num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "seq_length": 16, "max_position_embeddings": 16,
    "padded_vocab_size": 64, "hidden_dropout": 0.0, "attention_dropout": 0.0, "train_batch_size": BATCH,
    "train_micro_batch_size_per_gpu": 4, "train_iters": STEPS, "save_interval": HALF, "eval_interval": HALF,
    "eval_iters": 1, "log_interval": 1, "data_path": "tokens", "optimizer": {"type": "Adam", "params": {"lr": 3e-3}},
}  # fmt: skip
GATED = ("geglu", "swiglu", "reglu", "bilinear", "tanh-geglu")
OPTIMIZERS = (
    "Adam", "AdamW", "Lion", "Muon", "SM3", "SGD", "Lamb", "Adagrad", "RMSprop", "NAdam", "RAdam", "Adamax", "Adadelta",
    "CPU_Adam", "CPU_torch_adam", "ExampleLion",
)  # fmt: skip
ROUTED = {"mlp_type": "moe", "moe_router_type": "topk", "moe_loss_coeff": 0.0}
TEXT = {"tokenizer_type": "CharLevelTokenizer", "padded_vocab_size": 512}
CURRICULUM = {
    "enabled": True, "curriculum_type": "seqlen", "min_difficulty": 8, "max_difficulty": 16,
    "schedule_type": "fixed_linear", "schedule_config": {"total_curriculum_step": 4, "difficulty_step": 8},
}  # fmt: skip


ENCODER = {
    "architecture": "bert", "objective": "masked-lm", "data_path": "sentences", "cls_token_id": 60, "sep_token_id": 61,
    "mask_token_id": 62, "pad_token_id": 63,
}  # fmt: skip
RETRIEVER = ENCODER | {
    "architecture": "retriever", "objective": "inverse-cloze", "query_length": 8, "ict_head_size": 8,
    "use_one_sent_docs": True,
}  # fmt: skip
OF_A_DECODER = (
    "tokenizer_type", "padded_vocab_size", "reset_position_ids", "reset_attention_mask", "eod_mask_loss",
    "attention_config", "sliding_window_width", "curriculum_learning", "z_loss", "samples_per_pass",
)  # fmt: skip
SKIPPING = {
    "min_value": 8, "max_value": 16, "schedule_type": "fixed_linear",
    "schedule_config": {"require_steps": 4, "seq_per_step": 4},
}  # fmt: skip


def each(key: str, *values: Any) -> list[Options]:
    return [{key: value} for value in values]


NUMBERS: list[tuple[float, list[Options]]] = [
    (0.6, each("num_layers", 1, 2, 3, 4)),
    (0.5, each("norm", "layernorm", "rmsnorm", "scalenorm")),
    (0.2, each("norm_place", "after", "both")),
    (0.6, each("pos_emb", "rotary", "sinusoidal", "alibi", "rpe", "none")),
    (0.5, each("activation", "relu", "mish", "silu", "softsign", "openai-gelu", *GATED)),
    (0.3, each("num_kv_heads", 1, 2)),
    (0.15, each("head_dim", 4, 16)),
    (0.15, each("intermediate_size", 48, 64)),
    (0.1, [{"num_layers": 4, "num_unique_layers": 2, "param_sharing_style": way} for way in ("grouped", "spaced")]),
    (0.4, each("no_weight_tying", True)),
    (0.1, each("use_bias_in_head", True)),
    (0.1, each("embedding_multiplier", 3.0)),
    (0.1, each("logit_softcap", 5.0)),
    (0.3, [{"gpt_j_residual": True}, {"gpt_j_residual": True, "gpt_j_tied": True}]),
    (0.1, each("apply_residual_connection_post_layernorm", True)),
    (0.2, each("use_bias_in_attn_linear", False)),
    (0.1, each("use_bias_in_attn_output", True, False)),
    (0.2, each("use_bias_in_mlp", False)),
    (0.1, each("apply_query_key_layer_scaling", True)),
    (0.2, [TEXT | some for key in ("reset_position_ids", "reset_attention_mask") for some in each(key, True)]),
    (0.1, [TEXT | {"eod_mask_loss": True, "reset_attention_mask": True}]),
    (0.15, [{"sparsity": way, "sparse_attention": {"mode": mode, "block": 2}}
            for way in ("all", "interspersed") for mode in ("fixed", "variable", "local", "bigbird", "bslongformer")]),
    (0.15, each("sliding_window_width", 3, 8)),
    (0.1, each("attention_config", [[["global", "sliding"], "all"]], [[["global", "local"], "all"]])),
    (0.1, each("attention_multiplier", 0.2)),
    (0.1, each("attention_softcap", 4.0)),
    (0.15, each("qk_norm", "head", "all")),
    (0.25, each("hidden_dropout", 0.2)),
    (0.25, each("attention_dropout", 0.2)),
    (0.08, [ROUTED | {"moe_num_experts": experts, "moe_top_k": top} for experts in (2, 4) for top in (1, 2)]),
    (0.1, each("lora", {"enabled": True, "rank": 2})),
    (1.0, [{"optimizer": {"type": name, "params": {"lr": lr}}} for name in OPTIMIZERS for lr in (1e-3, 3e-3)]),
    (0.4, each("lr_decay_style", "cosine", "constant", "exponential", "inverse-sqrt", "wsd")),
    (0.3, each("warmup", 0.0, 0.5)),
    (0.3, each("gradient_clipping", 0.0, 0.1)),
    (0.3, each("weight_decay", 0.0, 0.1)),
    (0.1, each("rampup_batch_size", [4, 4, 8])),
    (0.1, each("curriculum_learning", CURRICULUM)),
    (0.1, each("callbacks", ["ema"], ["spike_guard"], ["ema", "spike_guard"])),
    (0.1, each("torch_autocast", {"enabled": True, "dtype": "bfloat16"})),
    (0.1, each("z_loss", 1e-3)),
    (0.1, each("samples_per_pass", 16)),
    (0.1, [{"train_data_paths": ["tokens"], "valid_data_paths": ["more"]},
           {"train_data_paths": ["tokens", "more"], "train_data_weights": [2, 1], "valid_data_paths": ["tokens"]}]),
    (0.15, each("init_method", "small_init", "wang_init", "xavier_uniform", "orthogonal")),
    (0.05, [{"data_efficiency": {"enabled": True, "data_routing": {"enabled": True, "random_ltd": {
        "enabled": True, "random_ltd_layer_id": [1], "random_ltd_schedule": SKIPPING}}}}]),
    (0.1, [ENCODER, ENCODER | {"sentence_pairs": "order"}, ENCODER | {"sentence_pairs": "none"}]),
    (0.1, [RETRIEVER, RETRIEVER | {"share_towers": True}]),
]  # fmt: skip
STAGES = [{"zero_optimization": {"stage": stage, **more}} for stage in (1, 2, 3) for more in (
    {}, {"reduce_bucket_size": 1000}, {"overlap_comm": True}, {"contiguous_gradients": False},
    {"offload_optimizer": {"device": "cpu"}},
)]  # fmt: skip
SPEED: list[tuple[float, list[Options]]] = [
    (0.3, [{"checkpoint_activations": True, "checkpoint_num_layers": layers, **more} for layers in (1, 2) for more in (
        {}, {"deepspeed_activation_checkpointing": True}, {"distribute_checkpointed_activations": True},
    )]),
    (0.2, each("num_workers", 1)),
    (0.3, each("checkpoint", {"background": True})),
]  # fmt: skip
PIPELINES = each("pipe_partition_method", "type:transformer", "uniform", "parameters", "time", "time+head")


def drawn(draw: random.Random, table: list[tuple[float, list[Options]]]) -> Options:
    found: Options = {}
    for probability, choices in table:
        if draw.random() < probability:
            found |= draw.choice(choices)
    return found


def layout(draw: random.Random, compiled: float) -> Options:
    """A layout of one to four ranks; what an engine cannot is refused by its rules."""
    ranks = draw.choice([1, 2, 2, 2, 3, 4])
    tensor, pipe = draw.choice([(t, p) for t in (1, 2, 4) for p in (1, 2, 3, 4) if ranks % (t * p) == 0])
    copies = ranks // (tensor * pipe)
    found: Options = {"num_gpus": ranks, "model_parallel_size": tensor, "pipe_parallel_size": pipe}
    found["engine"] = "deepspeed" if pipe > 1 else draw.choice(["plain", "deepspeed"])
    found["train_batch_size"] = batch = BATCH * 3 if copies == 3 else BATCH
    found["train_micro_batch_size_per_gpu"] = draw.choice([size for size in (1, 2, 4) if batch % (size * copies) == 0])
    found |= drawn(draw, SPEED)
    if pipe > 1:
        found |= draw.choice(PIPELINES)
    if tensor > 1 and draw.random() < 0.4:
        found["sequence_parallel"] = True
    if found["engine"] == "deepspeed" and draw.random() < 0.7:
        found |= draw.choice(STAGES)
    if draw.random() < compiled:
        found["compile"] = True
    return found


def settled(numbers: Options) -> Options:
    """Without what is for a decoder alone or for one dataset, where this is not."""
    left_out = OF_A_DECODER if "architecture" in numbers else ()
    several = {"data_path": None, "split": None} if "train_data_paths" in numbers else {}
    return {key: value for key, value in numbers.items() if key not in left_out} | several


def layouts_of(draw: random.Random, numbers: Options, compiled: float) -> list[Options]:
    """Two of the same batch. The loss of a retriever compares all samples of a micro-batch: there, it has four."""
    found = [layout(draw, compiled), layout(draw, 0.0)]
    for own in found if "query_length" in numbers else ():
        copies = own["num_gpus"] // (own["model_parallel_size"] * own["pipe_parallel_size"])
        if copies == 3:
            own["num_gpus"], copies = own["num_gpus"] // 3, 1
        own |= {"train_batch_size": BATCH, "train_micro_batch_size_per_gpu": 4 // copies}
    found[1]["train_batch_size"] = found[0]["train_batch_size"]
    return found


def make_sentences(folder: Path) -> None:
    """Documents of sentences, for encoders."""
    entry, draw = load_only("neox-data-indexed").find("data backend", "mmap"), np.random.default_rng(1)
    writer = entry.load()(build(entry)).create(folder / "sentences", 64)
    for document in range(120):
        sizes = draw.integers(2, 9, 1 + document % 6).tolist()
        writer.add_document(draw.integers(0, 60, sum(sizes)).tolist(), sizes)
    writer.close()


def placed(config: Options, folder: Path) -> Options:
    """With datasets by their place."""
    found = dict(config)
    for key in ("data_path", "train_data_paths", "valid_data_paths"):
        if (names := found.get(key)) is not None:
            found[key] = [str(folder / name) for name in names] if isinstance(names, list) else str(folder / names)
    return found


def rank_main(file: Path, rank: int, ranks: int, port: int) -> None:
    """A rank of the plan in `file`."""
    try:
        noted_run(file, f"said-{rank}.txt", rank=rank, ranks=ranks, port=port)
    except ConfigError:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(REFUSED)


def trained(plan: RunPlan, folder: Path) -> str:
    """What is wrong with how the ranks of a plan ended; "" where they ended well. Raises ConfigError as a rank does."""
    folder.mkdir(parents=True, exist_ok=True)
    file, world, port, began = folder / "run.json", plan.cluster.world_size, free_port(), time.monotonic()
    write_runfile(plan, file)
    import_all(json.loads(file.read_text()))
    ranks = {forked(partial(rank_main, file, rank, world, port)) for rank in range(world)}
    codes: list[int] = []
    while ranks:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process in ranks:
            ranks.discard(process)
            codes.append(os.waitstatus_to_exitcode(status))
        elif time.monotonic() - began > LIMIT_S:
            for each_rank in ranks:
                os.kill(each_rank, signal.SIGKILL)
                os.waitpid(each_rank, 0)
            return f"has not ended after {LIMIT_S:.0f} s"
        else:
            time.sleep(0.01)
    if REFUSED in codes:
        raise ConfigError("a rank has refused the config")
    return f"ended with {codes}" if any(codes) else ""


def logged(folder: Path) -> dict[tuple[int, str], float]:
    """Losses and gradient norms by step."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {(line["step"], name): line[name] for line in lines for name in ("loss", "grad_norm") if name in line}


def far(one: dict[tuple[int, str], float], other: dict[tuple[int, str], float], numbers: Options) -> str:
    """The first number that differs by more than rounding explains; "" where none does."""
    if one.keys() != other.keys():
        return f"other numbers are logged: {sorted(one.keys() ^ other.keys())}"
    loss, norm = (3e-2, 0.1) if "torch_autocast" in numbers else (1e-3, 5e-3)
    for step, name in sorted(one):
        if step > 1 and "mlp_type" in numbers:
            continue  # rounding may send a token to another expert
        first, second = one[step, name], other[step, name]
        allowed = loss if name == "loss" else norm * max(abs(first), abs(second), 1e-2)
        if not abs(first - second) <= allowed:
            return f"{name} of step {step} is {first} by one rank, and {second}"
    return ""


def tensors(folder: Path) -> dict[str, str]:
    files = (path for path in folder.glob("*.safetensors") if ".rng." not in path.name)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def apart(act: Callable[[], str], file: Path) -> str:
    """What `act` says, in a process of its own: after its threads, the ranks would be forked beside them."""
    code = os.waitstatus_to_exitcode(os.waitpid(forked(lambda: file.write_text(act())), 0)[1])
    return file.read_text() if code == 0 else f"ended with {code} when it was exported"


def at_half(saved: Path) -> None:
    """Go back to the checkpoint at the half of a run."""
    shutil.rmtree(saved / f"step-{STEPS:08d}")
    (saved / "latest").unlink()
    (saved / "metrics.jsonl").unlink()


def fault(alone: RunPlan, ranks: RunPlan, other: RunPlan | None, numbers: Options, home: Path) -> str:
    """What is wrong with a config; "" where nothing is. other: resumes in another layout; None: that is refused."""
    for plan, name in ((alone, "alone"), (ranks, "ranks")):
        if said := trained(plan, home / name):
            return f"{name} {said}"
    saved, found = home / "ranks", logged(home / "ranks")
    if said := far(logged(home / "alone"), found, numbers):
        return said
    if "architecture" not in numbers and (
        said := apart(partial(exported, ranks, saved, home / "exported"), home / "said")
    ):
        return said
    expected = tensors(saved / f"step-{STEPS:08d}")
    shutil.copytree(saved, home / "other")
    at_half(saved)
    if said := trained(ranks, saved):
        return f"resumed {said}"
    second_half = {place: value for place, value in found.items() if place[0] > HALF}
    if logged(saved) != second_half:
        return "resumed, it logs other numbers"
    if tensors(saved / f"step-{STEPS:08d}") != expected:
        return "resumed, it ends on other bits"
    if other is None:
        return ""
    at_half(home / "other")
    if said := trained(other, home / "other"):
        return f"resumed in another layout, it {said}"
    return far(second_half, logged(home / "other"), numbers) and "resumed in another layout, it logs other numbers"


def planned(config: Options, file: Path, catalog: Catalog) -> RunPlan:
    file.write_text(json.dumps(config))
    return prepare_run([file], [], catalog=catalog, resume="auto", machine=CPU, start=False).plan


def main() -> NoReturn:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compiled", type=float, default=0.05, help="share of the rounds with compile: true")
    args = parser.parse_args()
    folder: Path = args.folder.resolve()
    folder.mkdir(parents=True)
    make_data(folder)
    make_sentences(folder)
    warm_up()
    read_versions_once()
    catalog, ended, began, number = load_plugins(), Counter[str](), time.monotonic(), 0
    while time.monotonic() - began < args.seconds:
        number += 1
        draw, home = random.Random(args.seed * 100_000 + number), folder / f"round-{number}"
        numbers = settled(drawn(draw, NUMBERS))
        own, other = layouts_of(draw, numbers, args.compiled)
        common = placed(BASE | numbers, folder) | {"train_batch_size": own["train_batch_size"]}
        said, plans, file = "", [], folder / "config.json"
        try:
            for name, more in (("alone", {}), ("ranks", own)):
                plans.append(planned(common | more | {"save": str(home / name)}, file, catalog))
            with suppress(ProblemsError):
                plans.append(planned(common | other | {"save": str(home / "other")}, file, catalog))
            said = fault(plans[0], plans[1], plans[2] if len(plans) > 2 else None, numbers, home)
        except ProblemsError:
            ended["refused"] += 1
            continue
        except ConfigError:  # what shows once a pipeline is cut
            ended["refused by ranks"] += 1
            continue
        except Exception:  # noqa: BLE001  it is what is looked for
            said = traceback.format_exc()
        ended["wrong" if said else "right"] += 1
        if said:
            sys.stdout.write(f"{home}: {said}\n  {json.dumps(numbers)}\n  {json.dumps(own)}\n  {json.dumps(other)}\n")
        else:
            shutil.rmtree(home)
        sys.stdout.flush()
    sys.stdout.write(f"{number} rounds: {dict(ended)}\n")
    sys.stdout.flush()
    os._exit(1 if ended["wrong"] else 0)  # gloo's threads


if __name__ == "__main__":
    main()

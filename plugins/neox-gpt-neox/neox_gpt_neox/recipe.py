"""What keys of GPT-NeoX mean where several of them decide together, as GPT-NeoX computes it at ea7aefd."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neox_core.config.schema.convert import same
from neox_gpt_neox.defaults import assume, say_defaults
from neox_gpt_neox.epochs import translate_epochs
from neox_gpt_neox.idle import NOT_HERE, drop_idle
from neox_gpt_neox.profile import translate_profile
from neox_gpt_neox.translate import SAYS_NOTHING, Rewriting

MARKS = (
    "checkpoint_factor",
    "checkpoint_scale",
    "log_grad_norm",
    "mlp_multiple_of",
    "precision",
    "use_bias_in_norms",
    "use_wandb",
    "wandb_host",
)
"""Keys that GPT-NeoX 2 has and `neox config migrate` replaces: a config with one of them is GPT-NeoX's."""
UNREAD = ("apply_residual_connection_post_layernorm", "reset_attention_mask", "reset_position_ids")
"""Keys that act here, and that GPT-NeoX has and reads nowhere."""
GATED = ("geglu", "reglu", "bilinear", "swiglu", "glu")
UNGATED = {"silu": "swiglu", "swish": "swiglu", "gelu": "geglu", "relu": "reglu"}
"""Activation -> the one with a gate that has this function."""
READ_THROUGH = ("bf16", "comms_logger", "csv_monitor", "data_types", "flops_profiler", "tensorboard", "wandb")
"""Blocks of deepspeed_extra_args that are blocks of a config."""
NO_HOSTS = "/mock_path"
"""The hostfile that GPT-NeoX's recipes name for none."""


def mark_of(values: Mapping[str, Any]) -> str:
    """A key by which a config is recognisably GPT-NeoX's, before its keys are translated; "" where it has none."""
    return "" if "save_interval" in values else next((mark for mark in MARKS if mark in values), "")


def read_types(work: Rewriting) -> None:
    """`fp16: {type: bfloat16}`, by which the engine of GPT-NeoX 1 trains in bf16, before a rule refuses the type."""
    block = work.value("fp16")
    if isinstance(block, dict) and same(block.get("type"), "bfloat16") and work.value("bf16") is None:
        said = "DeeperSpeed 0.3.15 trains in bf16 by it; later engines ignore it: read as bf16: {enabled: true}"
        enabled, place = block.get("enabled", True), work.places["fp16.type"]
        work.drop("fp16", f"{SAYS_NOTHING}: bf16 has no loss scale")
        work.places["fp16.type"] = place
        work.note("fp16.type", said)
        work.write("bf16.enabled", enabled, place)


def translate_recipe(work: Rewriting, mark: str) -> None:
    """Rewrite what single rules cannot; with a `mark` of GPT-NeoX also what has another meaning in a config of neox."""
    steps = [_extra_args, _others, translate_profile, _llama_mlp, _no_hosts, translate_epochs, _decay, _warmup, _saves]
    if mark:
        assume(work, mark)
        steps += [_cosine, _within_a_step, _hosts, _unread, _vocabulary]
        steps.append(_experts if _is(work.value("moe_num_experts"), 2) else _width)
    for step in steps:
        step(work)
    drop_idle(work, of_gpt_neox=bool(mark))
    if mark:
        say_defaults(work, mark)


def _extra_args(work: Rewriting) -> None:
    """deepspeed_extra_args: its blocks that a config has itself."""
    extra = work.value("deepspeed_extra_args")
    if not isinstance(extra, dict):
        return
    for key in READ_THROUGH:
        inner = extra.get(key)
        if not isinstance(inner, dict) or work.value(key) is not None:
            continue
        path = f"deepspeed_extra_args.{key}"
        work.note(path, f"is read as the block {key}")
        work.values[key] = extra.pop(key)
        for each in [each for each in work.places if f"{each}.".startswith(f"{path}.")]:
            work.places[each.removeprefix("deepspeed_extra_args.")] = work.places[each]
            work.taken.add(each)
    if not extra and "deepspeed_extra_args" in work.places:
        del work.values["deepspeed_extra_args"]
        work.taken.add("deepspeed_extra_args")


def _others(work: Rewriting) -> None:
    """`comet_others`: a mapping, which rules on keys leave alone."""
    others = work.value("comet_others")
    if isinstance(others, dict):
        work.replace("comet_others", "comet.others", others, "is the old spelling of comet.others")


def _llama_mlp(work: Rewriting) -> None:
    """`mlp_type: llama` of GPT-NeoX 1: a gate, no biases, and 8/3 of the hidden size rounded up to 256."""
    if not same(work.value("mlp_type"), "llama"):
        return
    activation, hidden = work.value("activation") or "gelu", work.value("hidden_size")
    gated = activation if activation in GATED else UNGATED.get(activation)
    if gated is None or not _is(hidden, 1):
        return
    width = work.value("intermediate_size")
    said = f"is read as activation: {gated} without biases"
    if width is None:
        width = 256 * math.ceil(int(2 * 4 * hidden / 3) / 256)
        said += f"; intermediate-size is {width}, as GPT-NeoX 1 computes it"
    place = work.places["mlp_type"]
    work.replace("mlp_type", "activation", gated, said)
    work.write("use_bias_in_mlp", False, work.places.get("use_bias_in_mlp", place))
    work.write("intermediate_size", width, work.places.get("intermediate_size", place))


def _width(work: Rewriting) -> None:
    """`intermediate_size` as the width after the gate, from what GPT-NeoX 2 makes of it."""
    written, hidden = work.value("intermediate_size"), work.value("hidden_size")
    factor, multiple = work.value("expansion_factor"), work.value("mlp_multiple_of")
    activation = work.value("activation") or "gelu"
    if multiple is None:
        multiple = 1
    if not _is(multiple, 1):
        work.note("mlp_multiple_of", f"must be a number of 1 or more, not {multiple!r}", severity="error")
        return
    if not _is(hidden, 1) or not (written is None or _is(written, 1)) or "llama" in str(work.value("mlp_type")):
        return
    base = written
    if base is None:
        base = int(factor * hidden) if isinstance(factor, int | float) and not isinstance(factor, bool) else 4 * hidden
    gated = activation in GATED
    first, second = _halves(base, multiple) if gated else (_up(base, 2 * multiple), _up(base, multiple))
    at = next((key for key in ("intermediate_size", "expansion_factor") if work.value(key) is not None), "")
    key = at or ("activation" if gated and "activation" in work.places else "mlp_multiple_of")
    if first != second:
        first = _unbuilt(work, base, first, second, key)
    elif first != (written or 4 * hidden) and key in work.places:
        how = f"{activation} and mlp_multiple_of {multiple}" if gated else f"mlp_multiple_of {multiple}"
        said = f"GPT-NeoX computes a width of {first:,} from {base:,}, {how}"
        said = f"{said}: read as intermediate-size: {first}, the width after the gate" if gated else said
        work.note(key, said)
    changed = first != (written or 4 * hidden)
    if changed and key in work.places:
        work.write("intermediate_size", first, work.places[key])
        work.taken.discard("intermediate_size")
    for gone in ("expansion_factor", "mlp_multiple_of"):
        if work.value(gone) is not None:
            work.drop(gone, f"{SAYS_NOTHING}: the width of the MLP is {first:,}")


def _halves(base: int, multiple: int) -> tuple[int, int]:
    """The width of each half that the first matrix makes, and the one that the second takes."""
    both = int(base * 2 / 3)
    return _up(both, 2 * multiple) // 2, _up(both // 2, multiple)


def _unbuilt(work: Rewriting, base: int, first: int, second: int, key: str) -> int:
    """GPT-NeoX cannot build this MLP, so the number is what its author means."""
    said = f"GPT-NeoX cannot build it: of {base:,}, its first matrix makes {first:,} and its second takes {second:,}"
    work.note(key, f"{said}; read as the width itself", f"{3 * base} is {base} in GPT-NeoX", "warning")
    return base


def _experts(work: Rewriting) -> None:
    """The width of an expert: the number that is written, else 4 x `hidden_size`, with a gate 8/3, up to 256."""
    written, hidden = work.value("intermediate_size"), work.value("hidden_size")
    if written is None and _is(hidden, 1):
        gated = work.value("activation") in GATED
        width = _up(int(2 * hidden * 4 / 3) if gated else 4 * hidden, 256)
        if width != 4 * hidden:
            work.note("moe_num_experts", f"GPT-NeoX gives an expert a width of {width:,}: read as intermediate-size")
            work.write("intermediate_size", width, work.places["moe_num_experts"])
    if work.value("mlp_multiple_of") is not None:
        work.drop("mlp_multiple_of", f"{NOT_HERE}: experts take the width that is written, or a multiple of 256")


def _vocabulary(work: Rewriting) -> None:
    """GPT-NeoX pads the vocabulary to `make_vocab_size_divisible_by` times the tensor-parallel ranks."""
    key, ranks = "make_vocab_size_divisible_by", work.value("model_parallel_size")
    multiple = work.value(key)
    multiple = 128 if multiple is None else multiple
    if not _is(ranks, 2) or not _is(multiple, 1) or work.value("padded_vocab_size") is not None:
        return
    at = key if work.value(key) is not None else "model_parallel_size"
    said = f"GPT-NeoX pads the vocabulary to {multiple} x model-parallel-size {ranks}: read as {multiple * ranks}"
    work.note(at, said)
    work.write(key, multiple * ranks, work.places[at])


def _no_hosts(work: Rewriting) -> None:
    """The hostfile of the recipes, which names none."""
    if work.value("hostfile") == NO_HOSTS and not Path(NO_HOSTS).exists():
        work.drop("hostfile", f"{NOT_HERE}: there is no such file, so the run uses this machine")


def _hosts(work: Rewriting) -> None:
    """A hostfile of several hosts starts by pdsh."""
    hostfile = work.value("hostfile")
    if not isinstance(hostfile, str) or work.value("launcher") is not None:
        return
    try:
        lines = Path(hostfile).read_text(encoding="utf-8", errors="replace")[: 1 << 20].splitlines()
    except OSError:
        return  # which its reader reports
    hosts = {line.split()[0] for line in lines if line.split() and not line.lstrip().startswith("#")}
    if len(hosts) > 1:
        work.note("hostfile", "names several hosts, which start by launcher: pdsh, GPT-NeoX's default")
        work.write("launcher", "pdsh", work.places["hostfile"])


def _unread(work: Rewriting) -> None:
    """Keys with which this run is another one than GPT-NeoX's."""
    for key in UNREAD:
        if work.value(key) is True:
            work.note(key, "acts here, and GPT-NeoX reads it nowhere", "remove it to train as GPT-NeoX does")


def _decay(work: Rewriting) -> None:
    """`lr_decay_fraction`: the share of train_iters over which the rate decays."""
    share, steps = work.value("lr_decay_fraction"), work.value("train_iters")
    if share is None:
        return
    if work.value("lr_decay_iters") is not None:
        work.drop("lr_decay_fraction", f"{SAYS_NOTHING}: lr-decay-iters says where the decay ends")
    elif isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        work.note("lr_decay_fraction", f"must be above 0 and at most 1, not {share!r}", severity="error")
    elif _is(steps, 1):
        end = max(1, math.floor(steps * share))
        work.replace("lr_decay_fraction", "lr_decay_iters", end, f"is read as lr-decay-iters: {end}")


def _cosine(work: Rewriting) -> None:
    """A cosine that ends before the run: GPT-NeoX would let it rise again."""
    end, steps, older = work.value("lr_decay_iters"), work.value("train_iters"), work.value("lr_decay_version") == 1
    if same(work.value("lr_decay_style"), "cosine") and _is(end, 1) and _is(steps, end + 1) and not older:
        said = f"the rate is min-lr from step {end} to the end, {steps}; GPT-NeoX's cosine rises again after its end"
        work.note("lr_decay_iters", said)


def _within_a_step(work: Rewriting) -> None:
    """A warm-up shorter than a step starts above the peak in GPT-NeoX."""
    end, share = work.value("lr_decay_iters") or work.value("train_iters"), work.value("warmup")
    if isinstance(share, float) and _is(end, 1) and 1e-6 < share * end < 1:
        above = f"{1 / (share * end):g} times it"
        work.note("warmup", f"lasts {share * end:g} steps: the first update has the peak, and in GPT-NeoX {above}")


def _warmup(work: Rewriting) -> None:
    """`warmup_iters` and `decay_lr_to`, of the branch of GPT-NeoX that trained Llemma: shares of other keys."""
    steps, rate = work.value("lr_decay_iters") or work.value("train_iters"), work.value("optimizer.params.lr")
    warm, low = work.value("warmup_iters"), work.value("decay_lr_to")
    if _is(warm, 0) and _is(steps, 1) and warm <= steps and work.value("warmup") is None:
        share = warm / steps
        work.replace("warmup_iters", "warmup", share, f"is read as warmup: {share:g}, {warm} of {steps:,} steps")
    if isinstance(low, float) and isinstance(rate, float) and work.value("min_lr") is None:
        work.replace("decay_lr_to", "min_lr", low * rate, f"is read as min-lr: {low * rate:g}, this share of the peak")


def _saves(work: Rewriting) -> None:
    """`checkpoint_scale: log`: saves at the powers of checkpoint_factor."""
    scale, key = work.value("checkpoint_scale"), "checkpoint_factor"
    factor, steps = work.value(key), work.value("train_iters")
    if scale == "linear":
        work.drop("checkpoint_scale", f"{SAYS_NOTHING}: checkpoints are at the multiples of save-interval")
    if scale != "log" or not _is(steps, 1) or factor is None:
        return
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not factor > 1:
        work.note(key, f"must be above 1 with checkpoint_scale: log, not {factor!r}", severity="error")
        return
    extra, power = work.value("extra_save_iters"), 1.0
    found = set(extra) if isinstance(extra, list) else set()
    while power < steps + 1 and len(found) < 10_000:
        found.add(int(power))
        power *= factor
    work.drop(key, f"{SAYS_NOTHING}: extra-save-iters has its powers")
    said = f"is read as extra-save-iters at the powers of {factor:g}"
    work.replace("checkpoint_scale", "extra_save_iters", sorted(found), said)


def _up(number: int, multiple: int) -> int:
    return multiple * math.ceil(number / multiple)


def _is(value: Any, least: int) -> bool:
    """Whether a value is a whole number of at least so much."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least

"""Writes folders as GPT-NeoX does, from tensors whose parts are known by name.

The layout follows GPT-NeoX (`megatron/model/transformer.py`, `megatron/checkpointing.py` of ea7aefd8) and DeepSpeed's
`state_dict` of each optimizer: `stage_1_and_2.py`, `bf16_optimizer.py` and `fused_optimizer.py` of 0.16.5, with what
0.7.0 (5fe9d610), 0.7.7 (2076bf23), 0.10.3 (04a6fedf) and 0.12.6 (c00388a2) write else, and for GPT-NeoX 1 `stage1.py`
of DeeperSpeed 0.3.15 (eb7f5cff).
"""

import json
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from attrs import define, field
from deepspeed_classes import DynamicLossScaler, ForeignPickler, Fragment, ZeroStageEnum
from torch import Tensor

HIDDEN, HEADS, LAYERS, ROWS, WIDE, LENGTH = 16, 4, 2, 512, 24, 8
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
KINDS = ("master", "exp_avg", "exp_avg_sq")
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "Adam": {"lr": 0.001, "betas": [0.9, 0.95], "eps": 1e-8},
    "Lion": {"lr": 0.001, "betas": [0.9, 0.95]},
    "SGD": {"lr": 0.001, "momentum": 0.9},
    "SM3": {"lr": 0.001, "momentum": 0.9},
}


@define
class Run:
    """What to write. form: of the optimizer's files. kv_heads, gated, parallel, positions, norm: of the model.

    cut: the number of GPT-NeoX's layer with which the second of two stages begins. rows: each tensor rank has a part
    of the inputs of the head, as GPT-NeoX 1 has by default. spread: of numbers around 0; 0: they are small and above 0.
    elastic: with ZeRO's `elastic_checkpoint`, whose states have no padding. skipped: every step so far was.
    """

    form: str = "zero"
    precision: str = "fp16"
    tensor: int = 1
    stages: int = 1
    data: int = 1
    sequential: bool = False
    kv_heads: int = HEADS
    gated: bool = False
    parallel: bool = True
    tied: bool = False
    biases: bool = True
    qk_norm: bool = False
    positions: str = "rotary"
    norm: str = "layernorm"
    optimizer: str = "Adam"
    cut: int = 3
    rows: bool = False
    older_names: bool = False
    elastic: bool = False
    skipped: bool = False
    spread: float = 0.0
    config: dict[str, Any] = field(factory=dict)

    @property
    def gains(self) -> dict[str, tuple[int, ...]]:
        """What a norm has, in the names of GPT-NeoX."""
        whole = (HIDDEN,)
        return {"layernorm": {"weight": whole, "bias": whole}, "rmsnorm": {"scale": whole}, "scalenorm": {"g": (1,)}}[
            self.norm
        ]

    def part(self, full: Tensor, dim: int | None, rank: int) -> Tensor:
        return full if dim is None else full.chunk(self.tensor, dim)[rank].contiguous()


def draw(run: Run, seed: int) -> dict[str, Tensor]:
    """Parts by name: the queries, keys and values of a layer apart, and so are value and gate."""
    random = torch.Generator().manual_seed(seed)

    def new(*shape: int) -> Tensor:
        drawn = torch.randn(shape, generator=random)
        return drawn * run.spread if run.spread else drawn.abs() * 0.1 + 1e-3

    width = HIDDEN // HEADS
    parts = {"embedding": new(ROWS, HIDDEN)}
    if run.positions == "learned":
        parts["positions"] = new(LENGTH, HIDDEN)
    if run.positions == "rpe":
        parts["rpe"] = new(32, HEADS)
    leaves = {"weight": (HIDDEN,), "bias": ()} if run.biases else {"weight": (HIDDEN,)}
    for layer in range(LAYERS):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            parts |= {f"{layer}.{norm}.{leaf}": new(*shape) for leaf, shape in run.gains.items()}
        for leaf, rest in leaves.items():
            for name, heads in (("q", HEADS), ("k", run.kv_heads), ("v", run.kv_heads)):
                parts[f"{layer}.{name}.{leaf}"] = new(heads, width, *rest)
            for name in ("up", "gate") if run.gated else ("up",):
                parts[f"{layer}.{name}.{leaf}"] = new(WIDE, *rest)
        parts |= {f"{layer}.dense.weight": new(HIDDEN, HIDDEN), f"{layer}.down.weight": new(HIDDEN, WIDE)}
        parts |= {f"{layer}.qk.{leaf}": new(HEADS, width) for leaf in ("weight", "bias") if run.qk_norm}
        for name in ("dense", "down") if run.biases else ():
            for rank in range(run.tensor):  # each rank has a copy; those of the serial form are equal
                copy = parts.get(f"{layer}.{name}.bias@0") if rank and not run.parallel else None
                parts[f"{layer}.{name}.bias@{rank}"] = new(HIDDEN) if copy is None else copy
    parts |= {f"norm.{leaf}": new(*shape) for leaf, shape in run.gains.items()}
    return parts if run.tied else parts | {"head": new(ROWS, HIDDEN)}


def theirs(run: Run, parts: dict[str, Tensor], rank: int) -> "OrderedDict[str, Tensor]":
    """The parameters of one tensor rank in the order of GPT-NeoX's layers."""
    found: OrderedDict[str, Tensor] = OrderedDict({"0.word_embeddings.weight": run.part(parts["embedding"], 0, rank)})
    if run.positions == "learned":
        found["0.position_embeddings.weight"] = parts["positions"]
    for layer in range(LAYERS):
        of, key = f"{layer}.", f"{layer + 2}."
        for name, dim in (("input_layernorm", None), ("attention", 0), ("post_attention_layernorm", None), ("mlp", 1)):
            if dim is None:
                found |= {f"{key}{name}.{leaf}": parts[f"{of}{name}.{leaf}"] for leaf in run.gains}
            elif name == "attention":
                for leaf in ("weight", "bias") if run.biases else ("weight",):
                    q, k, v = (run.part(parts[f"{of}{each}.{leaf}"], 0, rank) for each in "qkv")
                    if run.kv_heads == HEADS:
                        fused = torch.stack((q, k, v), 1).flatten(0, 2)  # head by head
                    else:
                        fused = torch.cat([each.flatten(0, 1) for each in (q, k, v)])
                    found[f"{key}attention.query_key_value.{leaf}"] = fused
                if run.positions == "rpe":
                    found[f"{key}attention.rpe.weight"] = run.part(parts["rpe"], 1, rank)
                for leaf in ("weight", "bias") if run.qk_norm else ():
                    found[f"{key}attention.qk_layernorm.{leaf}"] = parts[f"{of}qk.{leaf}"]
                found |= _row(run, parts, f"{of}dense", f"{key}attention.dense", rank)
            else:
                up, down = ("dense_h_to_4h", "dense_4h_to_h") if run.older_names else ("linear1", "linear2")
                for leaf in ("weight", "bias") if run.biases else ("weight",):
                    both = [run.part(parts[f"{of}{each}.{leaf}"], 0, rank) for each in ("up", "gate")[: 1 + run.gated]]
                    found[f"{key}mlp.{up}.{leaf}"] = torch.cat(both)
                found |= _row(run, parts, f"{of}down", f"{key}mlp.{down}", rank)
    last = LAYERS + 3
    found |= {f"{last}.norm.{leaf}": parts[f"norm.{leaf}"] for leaf in run.gains}
    return (
        found if run.tied else found | {f"{last + 1}.final_linear.weight": run.part(parts["head"], int(run.rows), rank)}
    )


def _row(run: Run, parts: dict[str, Tensor], ours: str, key: str, rank: int) -> dict[str, Tensor]:
    found = {f"{key}.weight": run.part(parts[f"{ours}.weight"], 1, rank)}
    return found | ({f"{key}.bias": parts[f"{ours}.bias@{rank}"]} if run.biases else {})


def expected(run: Run, parts: dict[str, Tensor], *, moments: bool = False) -> dict[str, Tensor]:
    """The parameters of neox: for each key its queries, the key and its value, head by head; value, then gate.

    moments: of a bias that is the sum of those of the ranks they are one rank's.
    """
    found = {"embedding.weight": parts["embedding"]}
    if run.positions == "learned":
        found["position.weight"] = parts["positions"]
    if run.positions == "rpe":
        found["position.weight"] = parts["rpe"]
    leaves = {leaf: "bias" if leaf == "bias" else "weight" for leaf in run.gains}
    group = HEADS // run.kv_heads
    for layer in range(LAYERS):
        of, ours = f"{layer}.", f"layers.{layer}."
        for theirs, leaf in leaves.items():
            found[f"{ours}attention_norm.{leaf}"] = parts[f"{of}input_layernorm.{theirs}"]
            found[f"{ours}mlp_norm.{leaf}"] = parts[f"{of}post_attention_layernorm.{theirs}"]
            if run.qk_norm:
                found[f"{ours}attention.qk_norm.both.{leaf}"] = parts[f"{of}qk.{leaf}"].flatten()
        for leaf in ("weight", "bias") if run.biases else ("weight",):
            rows: list[Tensor] = []
            for key in range(run.kv_heads):
                rows += [parts[f"{of}q.{leaf}"][key * group + each] for each in range(group)]
                rows += [parts[f"{of}k.{leaf}"][key], parts[f"{of}v.{leaf}"][key]]
            found[f"{ours}attention.qkv.{leaf}"] = torch.cat(rows)
            both = [parts[f"{of}{each}.{leaf}"] for each in ("up", "gate")[: 1 + run.gated]]
            found[f"{ours}mlp.up.{leaf}"] = torch.cat(both)
        for name, called in (("dense", "attention.output"), ("down", "mlp.down")):
            found[f"{ours}{called}.weight"] = parts[f"{of}{name}.weight"]
            if run.biases:
                copies = [parts[f"{of}{name}.bias@{rank}"] for rank in range(run.tensor)]
                summed = run.parallel and not moments
                found[f"{ours}{called}.bias"] = torch.stack(copies).sum(0) if summed else copies[0]
    found |= {f"final_norm.{leaf}": parts[f"norm.{theirs}"] for theirs, leaf in leaves.items()}
    return found if run.tied else found | {"head.weight": parts["head"]}


def config_of(run: Run) -> dict[str, Any]:
    gated = {"activation": "swiglu"} if run.gated else {}
    return {
        "num_layers": LAYERS,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_kv_heads": run.kv_heads,
        "seq_length": LENGTH,
        "max_position_embeddings": LENGTH,
        "pos_emb": run.positions,
        "norm": run.norm,
        "gpt_j_residual": run.parallel,
        "no_weight_tying": not run.tied,
        "model_parallel_size": run.tensor,
        "pipe_parallel_size": 0 if run.sequential else run.stages,
        "optimizer": {"type": run.optimizer, "params": OPTIMIZERS[run.optimizer]},
        "train_iters": 100,
        "train_batch_size": 4 * run.data,
        "train_micro_batch_size_per_gpu": 4,
        "data_path": "none",
        "tokenizer_type": "CharLevelTokenizer",
        **gated,
        **({"use_qk_layernorm": True} if run.qk_norm else {}),
        **run.config,
    }


def write_run(folder: Path, run: Run, seed: int = 1, version: str = "0.16.5") -> dict[str, dict[str, Tensor]]:
    """Write `folder`/global_step7 and return the parts of the fp32 copies and of Adam's moments, by kind."""
    made = {kind: draw(run, seed + place) for place, kind in enumerate(KINDS)}
    step = folder / "global_step7"
    (step / "configs").mkdir(parents=True)
    (step / "configs" / "run.yml").write_text(
        "".join(f"{key}: {json.dumps(value)}\n" for key, value in config_of(run).items())
    )
    (folder / "latest").write_text("global_step7")
    for rank in range(run.tensor):
        held = {kind: theirs(run, parts, rank) for kind, parts in made.items()}
        weights = {name: each.to(DTYPES[run.precision]) for name, each in held["master"].items()}
        for layer in sorted({int(name.partition(".")[0]) for name in weights}) if not run.sequential else ():
            mine = {name.partition(".")[2]: each for name, each in weights.items() if name.startswith(f"{layer}.")}
            if run.positions == "sinusoidal" and not layer:
                mine["position_embeddings.inv_freq"] = 10_000 ** -(torch.arange(0, HIDDEN, 2) / HIDDEN)
            if run.positions == "alibi" and f"{layer}.attention.dense.weight" in weights:
                mine["attention.alibi_embed.slopes"] = torch.ones(HEADS // run.tensor)
            torch.save(OrderedDict(mine), step / f"layer_{layer:02d}-model_{rank:02d}-model_states.pt")
        for stage, names in enumerate(_stages(run, list(weights))):
            _write_rank(step, run, stage * run.tensor + rank, held, weights, names, version)
    return made


def _stages(run: Run, names: list[str]) -> list[list[str]]:
    """One block a stage; the last one has the end, and a copy of all of a tied embedding before its layers."""
    if run.stages == 1:
        return [names]
    first = [name for name in names if int(name.partition(".")[0]) < run.cut]
    last = [name for name in names if name not in first]
    embedding = [name for name in names if name.startswith("0.")]
    return [first, [*embedding, *last] if run.tied else last]


def _write_rank(
    step: Path, run: Run, rank: int, held: dict[str, Any], weights: dict[str, Tensor], names: list[str], version: str
) -> None:
    names = [name for name in names if not name.endswith("rpe.weight") or name.startswith("2.")]  # all layers share it
    groups = [[name for name in names if _decays(name)], [name for name in names if not _decays(name)]]
    spelled = {name: _spelled(run, name) for name in names}
    shapes: Any = [OrderedDict((spelled[name], held["master"][name].shape) for name in group) for group in groups]
    content: dict[str, Any] = {
        "module": {f"sequential.{name}": each for name, each in weights.items()} if run.sequential else None,
        "optimizer": None,
        "lr_scheduler": {
            "start_lr": 0.001,
            "warmup_iter": 1.0,
            "num_iters": 5,
            "decay_style": "cosine",
            "end_iter": 100,
            "min_lr": 0.0001,
        },
        "skipped_steps": 2,
        "global_steps": 7,
        "dp_world_size": run.data,
        "iteration": 7,
        "args": {"num_layers": LAYERS},
    }
    if run.form == "stage1":
        content["csr_tensor_module_names"] = set()
    else:
        told = {"train_batch_size": 4 * run.data, **run.config.get("deepspeed_extra_args", {})}
        content |= {"ds_config": told, "ds_version": version}
        content["param_shapes"] = shapes if run.form == "zero" else None
    flat = {kind: [torch.cat([held[kind][name].flatten() for name in group]) for group in groups] for kind in KINDS}
    if run.form == "adam":
        state, number = {}, 0
        for group in groups:
            for name in group:
                moments = {kind: held[kind][name] for kind in KINDS[1:]}
                if rank < run.tensor or "position" not in name:  # the copy beside a tied embedding has no gradient
                    state[number] = _called(run, moments, 5 if name == group[-1] else 0)
                number += 1
        counts = iter(range(number))
        content["optimizer"] = {
            "state": state,
            "param_groups": [{"step": 0, "params": [next(counts) for _ in group]} for group in groups],
        }
    elif run.form == "fused fp16":
        moments = {group: _called(run, {kind: flat[kind][group] for kind in KINDS[1:]}) for group in (0, 1)}
        base = {"state": moments, "param_groups": [{"params": [0]}, {"params": [1]}]}
        scale = {"dynamic_loss_scale": True, "cur_scale": 1024.0, "cur_iter": 7, "last_overflow_iter": 3}
        content["optimizer"] = {**scale, "optimizer_state_dict": base, "fp32_groups_flat": flat["master"]}
    torch.save(content, step / f"mp_rank_{rank:02d}_model_states.pt")
    for data in range(run.data if run.form in ("zero", "stage1") else 0):
        state = _stage1(run, flat, data) if run.form == "stage1" else _zero(run, flat, data)
        zero: dict[str, Any] = {"optimizer_state_dict": state}
        if run.form == "stage1":
            zero["param_shapes"] = OrderedDict((spelled[name], held["master"][name].shape) for name in names)
        prefix = "bf16_" if run.precision == "bf16" else ""
        state |= {"loss_scaler": DynamicLossScaler(), "dynamic_loss_scale": True, "overflow": False, "clip_grad": 0.0}
        if run.form == "zero" and version != "0.7.0":
            state["param_slice_mappings"] = [
                OrderedDict((spelled[name], Fragment()) for name in group) for group in groups
            ]
        path = step / f"{prefix}zero_pp_rank_{data}_mp_rank_{rank:02d}_optim_states.pt"
        torch.save(zero, path, pickle_module=SimpleNamespace(__name__="", Pickler=ForeignPickler))


def _called(run: Run, moments: dict[str, Tensor], step: int = 5) -> dict[str, Any]:
    """The state of a tensor by the run's optimizer, made of what Adam would have."""
    first, second = (moments[kind] for kind in KINDS[1:])
    if run.optimizer == "Adam":
        return {"step": step, **moments}
    if run.optimizer == "Lion":
        return {"step": step, "exp_avg": first}
    bounds = (
        {} if run.optimizer == "SGD" else {f"accumulator_{dim}": bound_of(second, dim) for dim in range(second.ndim)}
    )
    return {"momentum_buffer": first, **bounds}


def bound_of(second: Tensor, dim: int) -> Tensor:
    """The largest numbers along a dimension, as SM3 keeps them."""
    return (
        second.amax([each for each in range(second.ndim) if each != dim], keepdim=True) if second.ndim > 1 else second
    )


def _zero(run: Run, flat: dict[str, list[Tensor]], data: int) -> dict[str, Any]:
    """Equal parts of the padded vector; the fp32 copies drop the padding."""
    masters, states = [], {}
    for group in (0, 1):
        size = flat["master"][group].numel()
        share = -(-size // (2 * run.data)) * 2
        first, last = share * data, share * (data + 1)
        masters.append(flat["master"][group][first : min(last, size)].clone().requires_grad_())
        padded = {kind: torch.cat((flat[kind][group], torch.zeros(share * run.data - size))) for kind in KINDS[1:]}
        mine = {kind: each[first : min(last, size) if run.elastic else last].clone() for kind, each in padded.items()}
        states[group] = _called(run, mine)
    held = {} if run.skipped else states
    base: Any = {"state": held, "param_groups": [{"step": 0, "params": [0]}, {"step": 0, "params": [1]}]}
    found = {"single_partition_of_fp32_groups": masters, "base_optimizer_state": base, "zero_stage": ZeroStageEnum()}
    if run.elastic:  # Apex's Adam counts in its groups, which are not stored
        lean = [{name: each for name, each in state.items() if name != "step"} for state in states.values()]
        found |= {"base_optimizer_state": lean, "base_optimizer_state_step": 5}
    return found


def _stage1(run: Run, flat: dict[str, list[Tensor]], data: int, interval: int = 1024) -> dict[str, Any]:
    """DeeperSpeed 0.3.15: each interval of a vector is cut into the parts of the ranks; nothing keeps the padding."""
    masters, states = [], []
    for group in (0, 1):
        share = min(interval, -(-flat["master"][group].numel() // run.data) * run.data) // run.data
        mine = slice(data, None, run.data)
        pieces = {kind: flat[kind][group].split(share)[mine] for kind in KINDS}
        length = -(-flat["master"][group].numel() // (share * run.data))
        pieces = {kind: [*each, *[torch.zeros(0)] * (length - len(each))] for kind, each in pieces.items()}
        masters.append([each.clone() for each in pieces["master"]])
        moments = zip(*(pieces[kind] for kind in KINDS[1:]), strict=True)
        states.append([{"step": 5, "exp_avg": one.clone(), "exp_avg_sq": two.clone()} for one, two in moments])
    return {"local_sub_partitions_of_fp32_groups": masters, "base_optimizer_state": states, "zero_stage": 1}


def _decays(name: str) -> bool:
    return not name.endswith("bias") and "norm" not in name


def _spelled(run: Run, name: str) -> str:
    if run.sequential:
        return f"sequential.{name}"
    return f"tied_modules.embed.{name[2:]}" if run.tied and name.startswith("0.") else name

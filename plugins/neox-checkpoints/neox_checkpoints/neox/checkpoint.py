"""One checkpoint of GPT-NeoX that was opened."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import define
from neox_gpt.api import GPTPlan, parameter_shapes
from torch import Tensor

from neox_checkpoints.contracts import ImportedProgress, Stored
from neox_checkpoints.neox.config import Facts, Written, keys_of, read_config
from neox_checkpoints.neox.groups import MASTER, Group
from neox_checkpoints.neox.kinds import engine_in, schedule_in
from neox_checkpoints.neox.ranks import SHARED, Ranks
from neox_checkpoints.neox.steps import keep_its_steps
from neox_checkpoints.neox.weights import EMBEDDING, FIRST_BLOCK, Rule, join_state, merged, rules, unused
from neox_checkpoints.pickles import StandIn
from neox_core.errors import CheckpointError

DTYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
DRIFT = 1e-3
"""By how much of its largest number the copies of a parameter may differ between tensor ranks of one run."""
ADAM = {"exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq", "step": "step"}
STATES: dict[str, dict[str, str]] = {
    "Adam": ADAM,
    "AdamW": ADAM,
    "CPU_Adam": ADAM,
    "CPU_torch_adam": ADAM,
    "Lion": {"exp_avg": "momentum"},
    "SM3": {"momentum_buffer": "momentum", **{f"accumulator_{dim}": f"bound_{dim}" for dim in range(3)}},
    "SGD": {"momentum_buffer": "momentum_buffer"},
}
"""For each optimizer of neox the states of GPT-NeoX's, and what they are called here."""
UNUSED = {"SM3": {"step"}, "Lion": {"step"}}
"""States that the optimizer of neox does without."""


@define
class NeoXCheckpoint:
    """See `contracts.ForeignCheckpoint`."""

    ranks: Ranks
    keys: Mapping[str, Any]
    comments: Mapping[str, str]
    notes: Sequence[str]
    progress: ImportedProgress
    has_optimizer: bool
    files: Sequence[Path]

    def tensors(self, model: Any) -> Iterator[Stored]:
        path = self.ranks.folder.path
        plan: GPTPlan = model
        shapes = parameter_shapes(plan, self.keys["padded-vocab-size"])
        head = self.ranks.weights[0].get(f"{plan.num_layers + 4}.final_linear.weight")
        by_row = head is not None and head[1].ndim == 2 and head[1].shape[1] < plan.hidden_size
        made = list(rules(plan, list(self.ranks.weights[0]), self.ranks.tensor_ranks, head_dim=int(by_row)))
        used = {name for rule in made for name in rule.theirs}
        for rule in made:
            for name in rule.theirs:
                if name not in self.ranks.weights[0]:
                    where = self._file_of(name)
                    raise CheckpointError(f"{where}: has no {name.partition('.')[2]}, which the config's model needs")
        if {rule.ours for rule in made} != set(shapes):
            name = min({rule.ours for rule in made} ^ set(shapes))
            raise CheckpointError(f"{path}: nothing in it becomes {name} of the config's model")
        for name in unused(self.ranks.weights[0], used):
            if not self._is_left(name, plan):
                where = self.ranks.weights[0][name][0]
                raise CheckpointError(
                    f"{where}: holds {name.partition('.')[2]}, which the config's model does not have"
                )
        for rule in made:
            yield from self._parameter(rule, shapes[rule.ours])

    def _is_left(self, name: str, plan: GPTPlan) -> bool:
        """A parameter that GPT-NeoX has and does not use, or one that all blocks share."""
        return name.endswith(SHARED) or (plan.shared_norm and ".post_attention_layernorm." in name)

    def _file_of(self, name: str) -> Path:
        number, folder = name.partition(".")[0], self.ranks.folder
        if not folder.layers:
            return folder.ranks[0]
        layer = int(number) if number.isdecimal() else FIRST_BLOCK  # one that blocks share
        return folder.layers.get((layer, 0), folder.path / f"layer_{layer:02d}-model_00-model_states.pt")

    def _parameter(self, rule: Rule, shape: tuple[int, ...]) -> Iterator[Stored]:
        parts = [self.ranks.weight_parts(name) for name in rule.theirs]
        where, leaf = self.ranks.weights[0][rule.theirs[0]][0], rule.theirs[0].partition(".")[2]
        try:
            weight = merged(rule, parts)
        except RuntimeError as error:
            raise CheckpointError(f"{where}: {leaf} is of another shape than in the config's model") from error
        if tuple(weight.shape) != shape:
            raise CheckpointError(f"{where}: {leaf} makes {list(weight.shape)}, the config's model has {list(shape)}")
        self._require_one_run(rule, parts, where)
        groups = [self.ranks.kept(name) for name in rule.theirs] if self.has_optimizer else []
        if not groups:
            yield Stored("weight", rule.ours, weight)
            return
        kept = [each for each in groups if each is not None]
        if len(kept) != len(groups):
            raise CheckpointError(f"{where}: the optimizer has nothing for {leaf}")
        if all(MASTER in group.pieces for each in kept for group in each):
            copies = [
                [_there(group.tensor(MASTER, name), group) for group in each]
                for name, each in zip(rule.theirs, kept, strict=True)
            ]
            self._require_one_run(rule, copies, copies_of(kept[0][0]))
            master = merged(rule, copies)
            if tuple(master.shape) != shape:
                raise CheckpointError(f"{copies_of(kept[0][0])}: the fp32 copy of {rule.ours} is {list(master.shape)}")
            if weight.dtype == torch.float32:
                weight = master
            else:
                yield Stored("master", rule.ours, master)
        yield Stored("weight", rule.ours, weight)
        yield from self._states(rule, kept, shape, parts[0][0].shape)

    def _require_one_run(self, rule: Rule, parts: Sequence[Sequence[Tensor]], where: Path) -> None:
        """Ranks of one run have the same copy of what is not divided among them, but for rounding."""
        if rule.dim is not None or rule.summed or self.ranks.tensor_ranks == 1:
            return
        first, *others = (each.float() for each in parts[0])
        allowed = max(DRIFT, 2 * torch.finfo(parts[0][0].dtype).eps) * first.abs().amax()
        for rank, other in enumerate(others, 1):
            if bool((other - first).abs().amax() > allowed):
                name = rule.theirs[0].partition(".")[2]
                raise CheckpointError(
                    f"{where}: tensor ranks 0 and {rank} are of different runs or steps: their {name} differ",
                    hint="copy the checkpoint's folder again, whole",
                )

    def _states(
        self, rule: Rule, kept: Sequence[Sequence[Group]], shape: tuple[int, ...], part: Sequence[int]
    ) -> Iterator[Stored]:
        called = STATES[self.keys["optimizer"]["type"]]
        group = kept[0][0]
        if "exp_avg" in called and not self.ranks.states:  # every step so far was skipped
            for ours in called.values():
                yield Stored("state", rule.ours, torch.zeros(() if ours == "step" else shape), ours)
            return
        for theirs, ours in called.items():
            if theirs in group.numbers:
                yield Stored("state", rule.ours, torch.tensor(group.numbers[theirs]), ours)
            if theirs not in group.pieces:
                continue
            found = [
                [each.tensor(theirs, name) for each in ranks] for name, ranks in zip(rule.theirs, kept, strict=True)
            ]
            if any(part is None for parts in found for part in parts):
                yield Stored("state", rule.ours, torch.zeros(shape), ours)  # of what has had no gradient yet
                continue
            yield Stored("state", rule.ours, join_state(rule, found, part, theirs), ours)


def _there(found: Tensor | None, group: Group) -> Tensor:
    if found is None:
        raise CheckpointError(f"{copies_of(group)}: has no fp32 copy of a parameter")
    return found


def copies_of(group: Group) -> Path:
    """The first file that a group is in."""
    return next(pieces[0].path for pieces in group.pieces.values())


def opened(ranks: Ranks, files: Sequence[Path], *, optimizer: bool) -> NeoXCheckpoint:
    """A checkpoint as `contracts.ForeignCheckpoint` has it. files: of the run. Raises CheckpointError."""
    facts = _facts(ranks)
    written = keys_of(read_config(files), facts)
    has_optimizer = optimizer and bool(ranks.groups)
    if optimizer and not has_optimizer:
        written.notes.append("the checkpoint holds no optimizer state: the optimizer starts without one")
    if has_optimizer:
        _check_states(ranks, written)
        keep_its_steps(ranks, written)
    _add_notes(ranks, written)
    return NeoXCheckpoint(
        ranks, written.keys, written.comments, written.notes, _progress(ranks, facts.step), has_optimizer, files
    )


def _facts(ranks: Ranks) -> Facts:
    first, path = ranks.first, ranks.folder.ranks[0]
    step = first.get("iteration", first.get("total_iters"))
    if type(step) is not int or step < 0:
        raise CheckpointError(f"{path}: does not say after how many steps it was written")
    if EMBEDDING not in ranks.weights[0]:
        raise CheckpointError(f"{ranks.folder.path}: has no embedding: layer_00-model_00-model_states.pt is missing")
    shapes = {name: list(each.shape) for name, (_, each) in ranks.weights[0].items()}
    for name, shape in shapes.items():
        if name == EMBEDDING or name.endswith("final_linear.weight"):
            shape[0] *= ranks.tensor_ranks
        if name.endswith(("mlp.linear2.weight", "mlp.dense_4h_to_h.weight", "mlp.w2.weight")):
            shape[1] *= ranks.tensor_ranks
    dtype = ranks.weights[0][EMBEDDING][1].dtype
    if dtype not in DTYPES:
        raise CheckpointError(f"{ranks.folder.path}: holds weights of {dtype}")
    data_ranks = first.get("dp_world_size")
    return Facts(
        path=ranks.folder.path,
        shapes={name: tuple(shape) for name, shape in shapes.items()},
        dtype=DTYPES[dtype],
        step=step,
        pipeline=bool(ranks.folder.layers),
        tensor_ranks=ranks.tensor_ranks,
        data_ranks=data_ranks if type(data_ranks) is int else max(1, ranks.folder.data_ranks),
        first_version="csr_tensor_module_names" in first,
        deepspeed=version if isinstance(version := first.get("ds_version"), str) else "",
        ds_config=engine_in(first.get("ds_config"), path),
        scheduler=schedule_in(first.get("lr_scheduler"), path),
    )


def _dict(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}


def _progress(ranks: Ranks, step: int) -> ImportedProgress:
    skipped = ranks.first.get("skipped_steps")
    return ImportedProgress(step, skipped if type(skipped) is int else 0, _loss_scaler(ranks))


def _loss_scaler(ranks: Ranks) -> dict[str, Any]:
    from neox_checkpoints.pickles import read_pickled

    held: Mapping[str, Any] = _dict(ranks.first.get("optimizer"))
    if ranks.folder.zero:
        state = read_pickled(ranks.folder.zero[0, 0]).get("optimizer_state_dict", {})
        scaler = state.get("loss_scaler")
        held = scaler.attributes if isinstance(scaler, StandIn) else {}
    found = {name: held[name] for name in SCALER if type(held.get(name)) in (int, float)}
    return found if held.get("dynamic", held.get("dynamic_loss_scale")) else {}


def _check_states(ranks: Ranks, written: Written) -> None:
    name = written.keys["optimizer"]["type"]
    known = {*STATES.get(name, {}), *UNUSED.get(name, ())}
    strange = sorted(ranks.states - known)
    if name == "SM3" and not ranks.groups[0][0].whole:
        strange = [*strange, "accumulator_0 of a flat vector, which has no rows and columns"]
    if name not in STATES or strange:
        what = f"its state {strange[0]}" if strange else "its state"
        raise CheckpointError(
            f"{ranks.folder.path}: the optimizer is {name}, and neox does not know what becomes of {what}",
            hint="import the weights alone with --no-optimizer",
        )


def _add_notes(ranks: Ranks, written: Written) -> None:
    if written.keys["pos-emb"] == "rpe":
        if len(ranks.folder.ranks) > ranks.tensor_ranks:
            raise CheckpointError(
                f"{ranks.folder.path}: pos_emb rpe in a pipeline: each stage trained a table of its own"
            )
        written.notes.append(
            "GPT-NeoX multiplies the table of pos_emb rpe by the root of the head width; the product is imported, and"
            " moves slower by that root from here on"
        )
    if "bf16" in written.keys or "fp16" in written.keys:
        written.notes.append(
            "GPT-NeoX rounds to 16 bits in other places than neox: in bf16 losses near 5 differ by up to 4e-3 from the"
            " first step on, as they do when each weight changes by its rounding"
        )

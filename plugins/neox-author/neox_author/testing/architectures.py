"""The check of an architecture: small models of it, whole, on tensor-parallel ranks and as the stages of a pipeline."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen
from torch import nn

from neox_author.testing.clauses import check_light, clauses, has, hold, not_applicable
from neox_author.testing.model_clauses import (
    KEYS,
    LOGITS,
    Reading,
    check_decoding,
    check_dropout,
    check_passes,
    check_recomputed,
    gradients,
    loss_of,
    random_tokens,
    state_of,
)
from neox_author.testing.ranks import hold_same, later, run_ranks
from neox_author.testing.resolved import VOCAB, completed, resolve, why_refused
from neox_author.testing.stages import build_stage, run_stages
from neox_core.contracts.architecture import ModelSize
from neox_core.errors import CheckpointError, ConfigError
from neox_core.hooks.component import load_path
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.parallel.tensor import ALONE, TensorParallel, cut_of
from neox_core.plan.runfile import plan_of, to_json

if TYPE_CHECKING:
    from torch import Tensor

    from neox_core.hooks.catalog import Catalog
    from neox_core.plan.resolve import Resolved
    from neox_core.plan.runfile import RunPlan

EOD = 0
LAYOUTS: tuple[tuple[str, int, int, bool], ...] = (
    ("PP 2 equals one process", 1, 2, False),
    ("TP 2 equals one process", 2, 1, False),
    ("TP 2 x PP 2 equals one process", 2, 2, False),
    ("TP 2 with sequence parallelism equals one process", 2, 1, True),
)


@clauses
def check_architecture(catalog: Catalog, name: str, *, reading: Reading = LOGITS, **keys: Any) -> None:
    """The clauses of contracts.Architecture and its planner. Raises AssertionError with the one that does not hold, the
    layout, and the first tensor that differs.

    reading: how to read what a pass gives, of a model whose outputs are not logits of tokens. keys: of a config, with
    `_`, beside those of a usual decoder (num_layers, hidden_size, num_attention_heads ...).
    """
    entry = catalog.find("architecture", name)
    check_light(entry.require_planner())
    with tempfile.TemporaryDirectory() as folder:
        ask = partial(resolve, completed(catalog), "architecture", name, Path(folder))
        tried = Tried(ask, keys, ask(**keys), reading)
        _check_plan(tried.resolved)
        model = tried.build()
        _check_built(tried, model)
        weights = enlarged(model)
        whole = tried.build(weights=weights)
        hold_same("build() takes given weights", state_of(whole), weights, 0)
        check_passes(whole, causal=getattr(tried.target, "causal", True), reading=reading)
        recomputed = tried.other("it computes the same with recomputation", checkpoint_activations=True)
        if recomputed is not None:
            check_recomputed(whole, recomputed.build(weights=weights), reading)
        dropped = tried.other("dropout follows from the keys of the samples", hidden_dropout=0.3)
        if dropped is not None:
            check_dropout(whole, dropped.build(weights=weights), reading)
        if reading.logits:
            make = partial(tried.build, dtype=torch.float32)
            check_decoding(tried.architecture(), make, whole, tried.plan.seq_length)
        else:
            not_applicable("sample() continues as passes over the whole text do", "it gives no logits of tokens")
        check_layouts(tried, weights, model, whole)
        if dropped is not None and (other := dropped.other("", ranks=2, pipe_parallel_size=2)) is not None:
            _check_layout(other, "PP 2 equals one process with dropout", weights, model, dropped.build(weights=weights))


def check_layouts(tried: Tried, weights: Mapping[str, Tensor], first: Any, whole: Any) -> None:
    """Each of LAYOUTS that rules allow gives the loss and gradients of one process.

    first, whole: the model with its first weights, and with `weights`.
    """
    for clause, tensor, pipe, sequence_parallel in LAYOUTS:
        split = {"model_parallel_size": tensor, "pipe_parallel_size": pipe, "sequence_parallel": sequence_parallel}
        other = tried.other(clause, ranks=tensor * pipe, **split)
        if other is not None:
            _check_layout(other, clause, weights, first, whole)


@frozen
class Tried:
    """An architecture under some keys of a config. resolve: makes a plan of other keys. reading: of its outputs."""

    resolve: Callable[..., Resolved]
    keys: Mapping[str, Any]
    resolved: Resolved
    reading: Reading = LOGITS

    @property
    def plan(self) -> Any:
        """Of the model."""
        return self.resolved.plan.model

    @property
    def target(self) -> Any:
        """What the component's import path names."""
        return self.resolved.plan.architecture.load()[0]

    def architecture(self) -> Any:
        """The architecture of the plan; its attributes are checked."""
        made = self.target(self.plan)
        has(made, "an architecture", "build", "build_stage", "sample", "product")
        hold(isinstance(made.tables, tuple), "`tables` is a tuple of the first parts of names")
        return made

    def other(self, clause: str, **keys: Any) -> Tried | None:
        """The same under more keys; None where rules refuse them, so that the clause does not apply."""
        together = {**self.keys, **keys}
        try:
            return Tried(self.resolve, together, self.resolve(**together), self.reading)
        except ConfigError as error:
            not_applicable(clause, why_refused(error))
            return None

    def build(
        self,
        weights: Mapping[str, Tensor] | None = None,
        dtype: torch.dtype = torch.float64,
        tensor: TensorParallel = ALONE,
        seed: int = 5,
    ) -> Any:
        given = None if weights is None else dict(weights)
        return self.architecture().build(VOCAB, _context(dtype, tensor, seed=seed), given, eod=EOD)

    def stages(self, tensor: TensorParallel) -> list[Any]:
        """The stages of a tensor-parallel rank, each as the rank builds it that has it."""
        plan = self.resolved.plan
        size = plan.cluster.pipeline_parallel
        contexts = [_context(torch.float64, tensor, (rank, size)) for rank in range(size)]
        return [self.architecture().build_stage(plan, VOCAB, each, build_stage, eod=EOD) for each in contexts]


def _context(dtype: torch.dtype, tensor: TensorParallel, pipe: tuple[int, int] = (0, 1), seed: int = 5) -> BuildContext:
    return BuildContext(
        torch.device("cpu"), dtype, Groups(None, None, 0, 1, tensor, None, *pipe, model=tensor.group), seed
    )


def enlarged(model: nn.Module) -> dict[str, Tensor]:
    """Weights that are far from their first values, so that each of them matters."""
    found = {}
    for place, (name, value) in enumerate(state_of(model).items()):
        noise = torch.randn(value.shape, generator=torch.Generator().manual_seed(place))
        found[name] = (value.float() + 0.3 * noise).to(value.dtype)  # build() may make the model in fp32 first
    return found


def _check_plan(resolved: Resolved) -> None:
    plan, path = resolved.plan, resolved.plan.architecture.planner
    planner = load_path(path or "")
    hold(isinstance(plan.model, planner.plan_class), "plan() gives a `plan_class`")
    raw = json.loads(to_json(plan))
    hold(plan_of(raw, Path("run.json"), ConfigError, planner=path) == plan, "run.json holds the plan without a change")


def _check_built(tried: Tried, model: Any) -> None:
    plan, size = tried.resolved.plan, tried.resolved.size
    hold(isinstance(model, nn.Module), "build() gives a torch.nn.Module")
    hold(isinstance(model.flops_per_token, int) and model.flops_per_token > 0, "`flops_per_token` is a whole number")
    hold(isinstance(model.draws, bool), "`draws` is True or False")
    shapes = {name: tuple(each.shape) for name, each in model.named_parameters()}
    if isinstance(size, ModelSize) and not size.untold:
        differ = sorted(dict(shapes.items() ^ size.shapes.items()))
        hold(not differ, f"size() tells the shape of each parameter; not so of {differ[:1]}")
        _check_fullest(plan, size, shapes, "")
    else:
        not_applicable("size() tells the shape of each parameter", "the planner says that it is not known")
    random = torch.get_rng_state()
    torch.manual_seed(77)
    again, other = state_of(tried.build()), state_of(tried.build(seed=6))
    torch.set_rng_state(random)
    first = state_of(model)
    clause = "first weights follow from (seed, name), not from torch's own generator"
    hold_same(clause, again, first, 0)
    hold(
        any(not torch.equal(other[name], each) for name, each in first.items()),
        f"{clause}: another seed gives the same",
    )
    hold(all(bool(each.isfinite().all()) for each in first.values()), "first weights are finite")
    halves = tried.build(dtype=torch.bfloat16)
    kept = all(each.dtype == torch.bfloat16 for each in halves.parameters())
    hold(kept, "build() gives weights in the dtype of the context")
    tokens = random_tokens()
    loss = loss_of(halves, tokens, reading=tried.reading)
    hold(loss.dtype in (torch.float32, torch.float64), "the loss is in fp32 or wider, whatever the weights are in")
    wrong = first | {(name := min(shapes)): torch.zeros(1 + first[name].shape[0], *first[name].shape[1:])}
    try:
        tried.build(weights=wrong)
    except CheckpointError:
        hold(True, "build() raises CheckpointError for weights of another model")
    else:
        hold(False, "build() raises CheckpointError for weights of another model")


def _check_fullest(plan: RunPlan, size: ModelSize, shapes: Mapping[str, tuple[int, ...]], layout: str) -> None:
    """shapes: of the rank that holds most."""
    planner, held = load_path(plan.architecture.planner or ""), sum(map(prod, shapes.values()))
    told = sum(map(prod, planner.on_fullest_rank(plan, size).values()))
    clause = f"on_fullest_rank() tells what the fullest rank holds, or up to a quarter more{layout}"
    hold(held <= told <= 1.25 * held, f"{clause}: {held} numbers, not {told}")
    bytes_ = planner.activation_bytes(plan, size)
    hold(isinstance(bytes_, int) and bytes_ > 0, f"activation_bytes() gives a whole number; it gives {bytes_!r}")


def _check_layout(tried: Tried, clause: str, weights: Mapping[str, Tensor], first: Any, whole: Any) -> None:
    """Loss and gradients of a layout are those of one process. first: the model with its first weights."""
    resolved = tried.resolved
    plan, tokens = resolved.plan, random_tokens()
    wanted_loss, wanted = gradients(whole, tokens, tried.reading)
    started, faults = state_of(first), list[AssertionError]()

    def rank(tensor: TensorParallel) -> list[dict[str, tuple[int, ...]]]:
        pipe = plan.cluster.pipeline_parallel
        parts = tried.stages(tensor) if pipe > 1 else [tried.build(tensor=tensor)]
        names = {name for part in parts for name, _ in part.named_parameters()}
        lacks = sorted(names ^ {*wanted})
        hold(not lacks, f"{clause}: parameters have the names of the whole model; {lacks[:1]} is in one of them alone")
        for part in parts:
            own = {name: _mine(started[name], each) for name, each in part.named_parameters()}
            with later(faults):  # other ranks wait for this one
                hold_same(f"{clause}: first weights", state_of(part), own, 0)
            with torch.no_grad():
                for name, each in part.named_parameters():
                    each.copy_(_mine(weights[name], each))
        if pipe > 1:
            keys = (KEYS,) if whole.draws else ()
            labels = tokens[:, 1:].contiguous()
            loss = run_stages(parts, (tokens[:, :-1], *keys), lambda out: tried.reading.loss(out, labels))
            found: dict[str, Tensor] = {}
            for part in parts:
                for name, each in part.named_parameters():
                    own_gradient = torch.zeros_like(each) if each.grad is None else each.grad
                    found[name] = found[name] + own_gradient if name in found else own_gradient
        else:
            loss, found = gradients(parts[0], tokens, tried.reading)
        for each in faults:
            raise each
        hold_same(clause, {"the loss": loss}, {"the loss": wanted_loss})
        cut = {name: each for part in parts for name, each in part.named_parameters()}
        expected = {f"the gradient of {name}": _mine(value, cut[name]) for name, value in wanted.items()}
        hold_same(clause, {f"the gradient of {name}": value for name, value in found.items()}, expected)
        return [{name: tuple(each.shape) for name, each in part.named_parameters()} for part in parts]

    cluster = plan.cluster
    if cluster.tensor_parallel > 1:
        parts, *_ = run_ranks(cluster.tensor_parallel, rank, sequence_parallel=cluster.sequence_parallel)
    else:
        parts = rank(ALONE)
    hold(True, clause)  # what is told in the thread of a rank is not heard
    if isinstance(resolved.size, ModelSize) and not resolved.size.untold:
        fullest = max(parts, key=lambda part: sum(map(prod, part.values())))
        _check_fullest(plan, resolved.size, fullest, f" ({clause.partition(' equals')[0]})")


def _mine(whole: Tensor, parameter: Tensor) -> Tensor:
    cut = cut_of(parameter)
    return whole if cut is None else cut.of(whole)

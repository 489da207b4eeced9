"""Clauses of an engine in a rank, against a loop in plain torch and against one rank alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve
from torch import Tensor, nn

from neox_author.testing.clauses import has, hold, hold_raises, not_applicable
from neox_author.testing.made_engine import LRS, Made, batches, samples_of
from neox_author.testing.ranks import hold_same
from neox_author.testing.resolved import VOCAB
from neox_author.testing.trained import labels_of
from neox_core.contracts.engine import Engine, Peak
from neox_core.errors import CheckpointError, ConfigError
from neox_core.parallel.context import build_context
from neox_core.parallel.groups import build_groups
from neox_core.parallel.sample_keys import sample_keys
from neox_core.plan.runfile import RecomputePlan
from neox_core.run.optimizer import build_optimizer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neox_author.testing.engines import Tried

HALFWAY = 2
SPOILT = 1
"""A first token that makes a gradient infinite; no other sample starts with it."""
NOISE, MOST_NOISE = 8.0, 1e-3
"""Times, and at most: a fault makes more."""
METHODS = tuple(
    name for name, each in {**vars(Engine), **vars(Engine.__mro__[1])}.items() if callable(each) and name[0] != "_"
)


def check_alone(tried: Tried, wide: Tried) -> dict[str, Any]:
    """On one rank. wide: with other micro-batches. Returns what other layouts have to give, as plain values."""
    made = Made(tried.saving())
    engine = made.engine
    has(engine, "an engine", *METHODS)
    hold(engine.grad_norm() is None, "grad_norm() is None before the first step")
    _check_storage(engine, made.model)
    losses, norms, reference = _reference(tried)
    state = torch.get_rng_state()
    first, first_norms = made.train(range(HALFWAY))
    hold(torch.equal(torch.get_rng_state(), state), "a step draws no numbers from torch's own generator")
    metric = engine.metrics()
    checkpointer, at = made.checkpointer(), _state(tried.plan, HALFWAY)
    checkpointer.save(at)
    then, then_norms = made.train(range(HALFWAY, len(LRS)))
    clause = "it trains as a plain loop does"
    _near(f"{clause}: the losses", [*first, *then], losses)
    _near(f"{clause}: grad_norm() before clipping", [*first_norms, *then_norms], norms)
    weights = made.weights()
    hold_same(clause, weights, reference, 1e-5)
    _near("metrics() are means since the last call", [float(metric["objective_double"])], [2 * sum(first) / HALFWAY])
    _near("metrics() are means since the last call", [float(engine.metrics()["objective_double"])], [sum(then)])
    told = made.model.told.steps
    hold(told == [0, 1, 2, 3], f"modules with `at_step` are told the step, from 0; {told}")
    hold(engine.made_update() is True or bool(engine.made_update()), "made_update() is True after a finite gradient")
    _check_evaluation(made, weights)
    _check_told(tried, engine)
    engine.close()
    again = Made(tried.saving(load=""))
    _resume(again)
    rest, _ = again.train(range(HALFWAY, len(LRS)))
    clause = "it resumes to the bit"
    hold(rest == then, f"{clause}: the losses differ; {rest}, not {then}")
    hold_same(clause, again.weights(), weights, 0)
    other, _ = Made(wide).train(range(len(LRS)))
    _near("a step does not depend on how its samples are divided into micro-batches", other, losses)
    _check_options(tried)
    _check_keys(tried)
    _check_nonfinite(tried)
    _check_recomputed(tried)
    try:
        tried.maker().build_stage()
    except ConfigError as error:
        not_applicable("it cuts a row of layers into stages", error.message)
    plain = {name: each.tolist() for name, each in weights.items()}
    return {"losses": losses, "norms": norms, "weights": plain}


def train_alone(tried: Tried) -> dict[str, Any]:
    """What one rank gives, as `check_layout` compares it, with a checkpoint halfway."""
    made = Made(tried.saving())
    first, first_norms = made.train(range(HALFWAY))
    made.checkpointer().save(_state(tried.plan, HALFWAY))
    then, then_norms = made.train(range(HALFWAY, len(LRS)))
    weights = made.weights()
    return {
        "losses": [*first, *then],
        "norms": [*first_norms, *then_norms],
        "weights": {name: each.tolist() for name, each in weights.items()},
        "noise": _noise(tried, weights),
    }


def _noise(tried: Tried, weights: Mapping[str, Tensor]) -> dict[str, float]:
    """How far weights may be off for the order of sums: some times what a change of their last bits makes of them."""
    made, draw = Made(tried), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for each in made.model.parameters():
            signs = 2 * torch.randint(2, each.shape, generator=draw) - 1
            each.mul_(1 + torch.finfo(torch.float32).eps * signs)
    made.train(range(len(LRS)))
    far = {name: float((each - weights[name]).abs().amax()) for name, each in made.weights().items()}
    return {name: min(NOISE * each, MOST_NOISE) for name, each in far.items()}


def check_layout(tried: Tried, alone: dict[str, Any], *, spreads: bool = False) -> None:
    """On ranks of a layout, after `check_alone` or `train_alone` has left a checkpoint.

    spreads: a weight is spread over the ranks.
    """
    whole = {name: torch.tensor(each) for name, each in alone["weights"].items()}
    clause = f"{tried.layout} trains as one rank"
    groups = build_groups(tried.plan.cluster)
    parts = None
    if spreads:
        from neox_plain.api import spread  # only where an engine spreads parameters

        parts = spread(groups, groups.data_size)
    made = Made(tried.saving(), groups, parts=parts)
    first, first_norms = made.train(range(HALFWAY))
    made.checkpointer().save(_state(tried.plan, HALFWAY))
    then, then_norms = made.train(range(HALFWAY, len(LRS)))
    _near(f"{clause}: the losses", first[:1], alone["losses"][:1])
    _near(f"{clause}: grad_norm()", [*first_norms, *then_norms], alone["norms"], 1e-4)  # a wrong one clips wrongly
    _near(f"{clause}: the losses", [*first, *then], alone["losses"])
    weights = made.weights()
    hold_same(clause, weights, whole, 1e-5, alone.get("noise"))
    _check_shapes(made.engine, whole, f" ({tried.layout})")
    again = Made(tried.saving(load=tried.layout), groups, parts=parts)
    _resume(again)
    rest, _ = again.train(range(HALFWAY, len(LRS)))
    clause = f"it resumes to the bit ({tried.layout})"
    hold(rest == then, f"{clause}: the losses differ; {rest}, not {then}")
    hold_same(clause, again.weights(), weights, 0)
    other = Made(tried.saving(load=""), groups, parts=parts)
    _resume(other)
    clause = f"it loads what one rank has written ({tried.layout})"
    rest, _ = other.train(range(HALFWAY, len(LRS)))
    _near(f"{clause}: the losses", rest, alone["losses"][HALFWAY:])
    hold_same(clause, other.weights(), whole, 1e-5, alone.get("noise"))


def _resume(made: Made) -> None:
    state = made.checkpointer().load().state
    hold(state.step == HALFWAY, "a checkpoint is at the step that it was written at")


def _state(plan: Any, step: int) -> Any:
    from neox_core.plan.stored.state import TrainState

    state = TrainState()
    for _ in range(step):
        state.advance(plan)
    return state


def _near(clause: str, got: list[float], wanted: list[float], tolerance: float = 1e-5) -> None:
    near = all(abs(one - other) <= tolerance * (1 + abs(other)) for one, other in zip(got, wanted, strict=True))
    hold(near, clause if near else f"{clause}; {got}, not {wanted}")


def _reference(tried: Tried) -> tuple[list[float], list[float], dict[str, Tensor]]:
    """Losses, norms before clipping, and weights of a loop in plain torch."""
    plan = tried.plan
    context = build_context(plan, build_groups(plan.cluster), 0)
    model: Any = plan.architecture.load()[0](plan.model).build(VOCAB, context)
    optimizer = build_optimizer(plan.optim, model, None, (), total_steps=plan.train.train_iters)
    losses, norms = [], []
    for step, lr in enumerate(LRS):
        for group in optimizer.param_groups:
            group["lr"] = lr
        tokens = samples_of(step, plan.batch.train_batch)
        loss = model.outputs(tokens[:, :-1]).cross_entropy(labels_of(tokens))
        loss.backward()
        losses.append(float(loss.detach()))
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), plan.optim.gradient_clipping)))
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms, {name: each.detach().clone() for name, each in model.named_parameters()}


def _check_storage(engine: Any, model: nn.Module) -> None:
    wanted = {name: each.numel() for name, each in model.named_parameters()}
    for what in ("shards", "weights"):
        found = dict.fromkeys(wanted, 0)
        for shard in getattr(engine, what):
            found[shard.name] += shard.count
        hold(found == wanted, f"each element of a parameter is in `{what}` once, on one rank")
    own = {id(each) for group in engine.optimizer.param_groups for each in group["params"]}
    parameters = dict(model.named_parameters())
    with engine.at_hand(), engine.filled_groups():
        own |= {id(each) for group in engine.optimizer.param_groups for each in group["params"]}
        for shard in engine.shards:
            hold(id(shard.stepped) in own, f"what `shards` names is in the optimizer's groups; {shard.name} is not")
            weight = parameters[shard.name].detach().reshape(-1)[shard.first : shard.first + shard.count]
            hold(shard.stepped.dtype == torch.float32, f"what the optimizer steps is fp32; {shard.name} is not")
            hold(
                torch.equal(shard.part_of(shard.stepped), weight.float()), f"masters start as the weights; {shard.name}"
            )
        state = engine.new_state(shard, "kit", torch.float32)
        same = state.dtype == torch.float32 and state.numel() == shard.stepped.numel() and not bool(state.any())
        hold(same, "new_state() gives zeros, as many as `stepped` has")
    lacks = [name for name in parameters if not engine.stores(name)]
    hold(not lacks, f"stores() is True of each parameter on the only rank; not of {lacks[:1]}")
    _check_shapes(engine, parameters, "")


def _check_shapes(engine: Any, whole: Mapping[str, Tensor], layout: str) -> None:
    shapes = {name: tuple(each) for name, each in engine.shapes().items()}
    wanted = {name: tuple(each.shape) for name, each in whole.items()}
    hold(shapes == wanted, f"shapes() are those of whole parameters{layout}")


def _check_evaluation(made: Made, weights: dict[str, Tensor]) -> None:
    made.seen.clear()
    state, held_out = torch.get_rng_state(), [samples_of(99, 4), samples_of(98, 4)]
    losses = made.engine.evaluate(held_out)
    hold(made.seen == [(False, False)] * 2, "evaluate() runs the model in evaluation, without gradients")
    hold(made.model.training, "evaluate() leaves the model in training")
    hold(torch.equal(torch.get_rng_state(), state), "evaluate() draws no numbers from torch's own generator")
    with torch.no_grad():
        whole = torch.cat(held_out)
        wanted = float(made.model.outputs(whole[:, :-1]).cross_entropy(labels_of(whole)))
    hold(len(losses) == len(held_out), "evaluate() gives the loss of each batch")
    mean = float(torch.stack(list(losses)).mean())
    _near("evaluate() gives losses whose mean is that over the labels that count", [mean], [wanted])
    clause = "evaluation_metrics() are means of the last evaluation"
    if hasattr(made.engine, "evaluation_metrics"):
        measured = made.engine.evaluation_metrics()
        _near(clause, [float(measured.get("objective_double", -1))], [2 * wanted])
    else:
        not_applicable(clause, "it has none")
    hold_same("evaluate() changes no weight", made.weights(), weights, 0)


def _check_told(tried: Tried, engine: Any) -> None:
    """What it tells after steps of which none was left out."""
    hold(engine.skipped_steps() == 0, "skipped_steps() counts updates that were left out")
    engine.count_skipped(7)
    hold(engine.skipped_steps() == 7, "count_skipped() is where skipped_steps() starts")
    hold(engine.loss_scale() is None, "loss_scale() is None, unless training in fp16")
    took = engine.timings()
    hold(isinstance(took, dict) and all(isinstance(each, float) for each in took.values()), "timings() gives floats")
    peak = tried.maker().find_peak(torch.device("cpu"), lambda x, weight: x @ weight.T)
    hold(isinstance(peak, Peak), f"find_peak() gives a Peak, not a {type(peak).__name__}")


def _check_options(tried: Tried) -> None:
    clause = "changed_options() tells the options that are no longer what they were, but for the lr"
    made, other = Made(tried), Made(tried)
    made.train(range(1))
    hold(not any(made.engine.changed_options()), clause)
    made.engine.optimizer.param_groups[-1]["weight_decay"] = 0.25
    told = made.engine.changed_options()
    hold(told and told[-1] == {"weight_decay": 0.25} and not any(told[:-1]), f"{clause}; {told}")
    other.engine.change_options(told)
    taken = other.engine.optimizer.param_groups[-1]["weight_decay"] == 0.25
    hold(taken, "change_options() takes over what changed_options() gave")
    clause = "change_options() raises CheckpointError for another number of groups"
    hold_raises(CheckpointError, lambda: other.engine.change_options([*told, {}]), clause)


def _check_keys(tried: Tried) -> None:
    clause = "the keys of a micro-batch follow from the numbers of its samples in the run"
    made = Made(tried, draws=True)
    model: Any = made.model
    model.forward = lambda compute, keys=None, *, routing=None: compute(model.outputs)
    made.engine.start_at(0)
    made.train(range(2))
    wanted = sample_keys(tried.plan.train.seed, 0, 2 * tried.plan.batch.train_batch, torch.device("cpu"))
    found = torch.cat(made.keys) if made.keys else torch.empty(0)
    hold(torch.equal(found, wanted), clause)
    later = Made(tried, draws=True)
    later_model: Any = later.model
    later_model.forward = lambda compute, keys=None, *, routing=None: compute(later_model.outputs)
    later.engine.start_at(tried.plan.batch.train_batch)
    later.train(range(1, 2))
    found = torch.cat(later.keys) if later.keys else torch.empty(0)
    hold(torch.equal(found, wanted[tried.plan.batch.train_batch :]), f"{clause}: start_at() says where they start")


def _check_nonfinite(tried: Tried) -> None:
    made = Made(tried)
    engine, model, spoilt = made.engine, made.model, [False]

    def look(embedding: nn.Module, given: tuple[Tensor, ...]) -> None:
        spoilt[0] = bool(given[0][0, 0] == SPOILT)

    def spoil(block: nn.Module, given: Any, out: Tensor) -> None:
        if spoilt[0]:
            out.register_hook(lambda gradient: gradient * float("inf"))

    model.embedding.register_forward_pre_hook(look)
    model.layers[1].register_forward_hook(spoil)
    good = list(batches(tried.plan, None, range(3)))
    number = tried.plan.batch.gradient_accumulation
    engine.train_step(iter(good[:number]), LRS[0])
    before, bad = made.weights(), [each.clone() for each in good[number : 2 * number]]
    bad[-1][0, 0] = SPOILT
    engine.train_step(iter(bad), LRS[1])
    hold(not bool(engine.made_update()), "made_update() is False after a gradient that is not finite")
    hold_same("a gradient that is not finite changes no weight", made.weights(), before, 0)
    hold(engine.skipped_steps() == 1, "skipped_steps() counts updates that were left out")
    found = engine.find_nonfinite()
    wanted = {name for name, _ in model.named_parameters() if name.startswith(("embedding", "layers.0.", "layers.1."))}
    hold(
        {*found} == wanted,
        f"find_nonfinite() names the parameters; {sorted({*found} ^ wanted)[:1]} is one too many, or lacks",
    )
    hold(found[-1] == "embedding.weight", f"find_nonfinite() names the last layer first; {found[:1]}")


def _check_recomputed(tried: Tried) -> None:
    clause = "what recomputes activations gives the same result and gradient"
    recompute = RecomputePlan(layers=1, deepspeed=True)
    plan = evolve(tried.plan, model=evolve(tried.plan.model, recompute=recompute))
    by = evolve(tried, plan=plan).maker().recompute_by()
    if by is None:
        not_applicable(clause, "the engine leaves recomputation to the model")
        return
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
    found = []
    for call in (lambda run, given: run(given), by):
        given = x.clone().requires_grad_()
        result = call(lambda value: torch.tanh(value) * value, given)
        result.square().sum().backward()
        found.append({"the result": result.detach(), "the gradient": given.grad})
    hold_same(clause, found[1], found[0], 0)

"""The check of a model change against `neox_gpt.api.ModelChange` and `neox_gpt.api.LinearChange`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen
from neox_author.testing.clauses import clauses, has, hold, not_applicable
from neox_author.testing.in_layouts import check_in_layouts, whole_name
from neox_author.testing.plugins import build
from neox_author.testing.ranks import hold_same, run_ranks
from torch import Tensor, nn

from neox_core.hooks.component import load_path
from neox_core.parallel.sample_keys import sample_keys
from neox_core.parallel.tensor import ALONE, Cut, TensorParallel
from neox_gpt.change_contracts import ChangeSize, LinearShape
from neox_gpt.changes import LinearChange, describe
from neox_gpt.linear import ColumnLinear, RowLinear
from neox_gpt.testing.layer_clauses import (
    DECODER,
    check_accumulation,
    check_calls,
    check_finite_differences,
    check_no_wait,
    check_recomputed,
    random,
)
from neox_gpt.testing.ranks import cuts_of, draw, gradients

if TYPE_CHECKING:
    from neox_core.hooks.catalog import Catalog
    from neox_gpt.change_contracts import ModelChange

BATCH, SEQ = 3, 4
WHAT = "a model change"
LAYERS = (
    LinearShape("layers.1.attention.qkv", 16, 48, "outputs"),
    LinearShape("layers.1.attention.output", 16, 24, "inputs"),
    LinearShape("layers.1.mlp.up", 16, 64, "outputs", (32, 32)),
    LinearShape("layers.1.mlp.down", 32, 16, "inputs"),
)
OTHERS = ("embedding.weight", "layers.0.attention_norm.weight", "layers.0.mlp.up.bias", "final_norm.weight")


@clauses
def check_model_change(catalog: Catalog, name: str, *, trained: bool = False, **settings: Any) -> None:
    """Raises AssertionError naming the clause of `neox_gpt.api.ModelChange` that the change breaks, and the first
    tensor that differs.

    It is asked about four layers, as a block has them. Each that it changes is run whole, on two tensor-parallel ranks,
    and on two with sequence parallelism; the ranks are threads. trained: also train a small decoder with it, in the
    layouts of `neox_author.testing.in_layouts`.
    """
    entry = catalog.find("model change", name)
    target, built, path = entry.load(), build(entry, **settings), entry.component.planner
    change: ModelChange = target(built)
    has(change, WHAT, "change", "freezes")
    hold(isinstance(getattr(change, "draws", None), bool), f"{WHAT} has `draws`, True or False")
    hold(path is not None, f"{WHAT} has a planner, which tells what it adds")
    sizes = {each: load_path(str(path))(each, built) for each in LAYERS}
    changed = []
    for each in LAYERS:
        made, size = change.change(each, ALONE), sizes[each]
        hold(
            (made is None) == (size is None),
            f"the planner tells which layers are changed: for {each.name} it gives {type(size).__name__}",
        )
        if made is not None:
            hold(isinstance(made, LinearChange), "`change` makes a neox_gpt.api.LinearChange or None")
            changed.append(each)
    freezes = _check_trained(target(built), change, sizes)
    named = ", ".join(each.name for each in LAYERS)
    hold(changed or freezes, f"with these settings it changes one of {named}, or freezes a parameter")
    for each in changed:
        layer = _Layer(each, name, partial(target, built), change.draws)
        _check_whole(layer, sizes[each])
        for sequence_parallel in (False, True):
            _check_split(layer, sizes[each], sequence_parallel=sequence_parallel)
    if changed:
        wide = LinearShape(changed[0].name, 512, 512, changed[0].split)
        check_accumulation(_Layer(wide, name, partial(target, built), change.draws).make(), _run, random(2, 8, 512))
    else:
        not_applicable("a changed layer computes as the contract says", "it only freezes parameters")
    if trained:
        keys = {"model_changes": [whole_name(entry)], **settings}
        check_in_layouts(catalog, "architecture", DECODER, passes=False, trained=True, **keys)


@frozen
class _Layer:
    """A layer that is changed. new: makes the model change, as each process of a run does."""

    shape: LinearShape
    name: str
    new: Callable[[], ModelChange]
    draws: bool

    def make(self, tensor: TensorParallel = ALONE) -> Any:
        inputs, outputs = self.shape.inputs, self.shape.outputs
        made: Any = (
            ColumnLinear(inputs, outputs, tensor, sections=self.shape.sections)
            if self.shape.split == "outputs"
            else RowLinear(inputs, outputs, tensor)
        )
        own = self.new().change(self.shape, tensor)
        if own is None:
            raise AssertionError(f"every rank changes the same layers: {self.shape.name} is not changed on another")
        made.take_change(self.name, own)
        return made

    def change_in(self, module: nn.Module) -> Any:
        return next(each for each in module.modules() if isinstance(each, LinearChange))

    def told(self, module: Any, samples: slice = slice(0, BATCH), step: int = 3) -> Any:
        """The module as in training, at a step, on some of the samples."""
        own = self.change_in(module)
        own.at_step(step)
        own.for_samples(sample_keys(5, 0, BATCH, torch.device("cpu"))[samples], layer=1)
        return module


def _run(module: nn.Module, x: Tensor) -> Tensor:
    result: Tensor = module(x)
    return result


def _same_shape(module: Any, x: Tensor) -> Tensor:
    """The result, projected to the shape of `x` by fixed numbers."""
    found: Tensor = module(x)
    hold(found.dtype == x.dtype, f"same dtype: {x.dtype} became {found.dtype}")
    return found @ random(found.shape[-1], x.shape[-1], seed=9, dtype=x.dtype)


def _check_trained(again: ModelChange, change: ModelChange, sizes: Any) -> bool:
    """Whether it freezes a parameter."""
    names = (*(f"{each.name}.weight" for each in LAYERS), *OTHERS)
    frozen = {each: change.freezes(each) for each in names}
    hold(all(isinstance(each, bool) for each in frozen.values()), "`freezes` gives True or False")
    hold({each: again.freezes(each) for each in names} == frozen, "`freezes` follows from the name and the settings")
    adds = any(size is not None and size.shapes for size in sizes.values())
    hold(adds or not all(frozen.values()), "something is left to train")
    return any(frozen.values())


def _check_whole(layer: _Layer, size: Any) -> None:
    hold(isinstance(size, ChangeSize), "the planner gives a ChangeSize")
    x = random(BATCH, SEQ, layer.shape.inputs)
    module = layer.make()
    own = layer.change_in(module)
    shapes = {name: tuple(each.shape) for name, each in own.named_parameters()}
    hold(dict(size.shapes) == shapes, f"the planner tells the shape of each parameter: {shapes}, not {size.shapes}")
    hold(not list(own.buffers()), "state is in parameters, not in buffers")
    _check_drawn(layer)
    draw(module.double())
    layer.told(module)
    _like("`forward` gives a tensor like y", own(x, y := random(BATCH, SEQ, layer.shape.outputs)), y)
    _like("`change_weight` gives a tensor like the weight", own.change_weight(module.weight), module.weight)
    before = module.weight.detach().clone()
    check_calls(module, _same_shape, x, WHAT)
    hold(torch.equal(module.weight, before.bfloat16().double()), f"{WHAT} leaves the weight as it is")
    draw(module)
    whole = module(x)
    each_alone = [layer.told(module, slice(at, at + 1))(x[at : at + 1])[0] for at in range(BATCH)]
    clause = "a sample does not depend on the others in its micro-batch"
    hold_same(clause, {"the result": torch.stack(each_alone)}, {"the result": whole})
    own.for_samples(None, 1)
    module.eval()
    alone = torch.stack([torch.stack([module(token[None, None])[0, 0] for token in sample]) for sample in x])
    hold_same("the result for a token depends on that token alone", {"the result": alone}, {"the result": module(x)})
    if not layer.draws:
        hold_same("without `draws` a pass does not depend on samples", {"the result": whole}, {"the result": module(x)})
    _check_folded(module, own, x, folds=size.folds)
    module.train()
    layer.told(module)
    if own.straight_through:
        not_applicable("the gradient is that of the function", "the change is `straight_through`")
        found = gradients(module, partial(_same_shape, module), x, random(*x.shape, seed=5))
        learns = layer.new().freezes(f"{layer.shape.name}.weight") or bool(found["the gradient of weight"].any())
        hold(learns, "what is `straight_through` gives the weight a gradient, unless `freezes` names it")
    else:
        check_finite_differences(module, _same_shape, x)
    check_recomputed(module, _same_shape, x)
    check_no_wait(module, _same_shape, x)
    _check_resumed(layer, module, x)


def _like(clause: str, found: object, wanted: Tensor) -> None:
    shown = describe(found)
    same = isinstance(found, Tensor) and (found.shape, found.dtype) == (wanted.shape, wanted.dtype)
    hold(same, f"{clause}: {describe(wanted)}, not {shown}")


def _check_drawn(layer: _Layer) -> None:
    """Parameters that are not drawn start with the same finite numbers in each process."""
    first, second = (layer.change_in(layer.make()) for _ in range(2))
    others = dict(second.named_parameters())
    for name, parameter in first.named_parameters():
        if parameter.dim() < 2 or name in first.starts_as_made:
            same = torch.equal(parameter, others[name]) and bool(parameter.isfinite().all())
            hold(same, f"what is not drawn starts with the same numbers in each process: {name} differs")


def _check_folded(module: Any, own: Any, x: Tensor, *, folds: bool) -> None:
    clause = "folded into the weight, it computes the same"
    given = module.weight.detach().clone()
    found = own.folded(given)
    hold(folds == (found is not None), f"the planner tells whether `folded` gives a weight: it tells {folds}")
    if found is None:
        not_applicable(clause, "`folded` gives None")
        return
    hold(torch.equal(given, module.weight), f"{clause}: it leaves the weight as it is")
    result = torch.nn.functional.linear(x, found, own.change_bias(module.bias))
    hold_same(clause, {"the result": result}, {"the result": module(x)}, 1e-12)


def _check_resumed(layer: _Layer, module: Any, x: Tensor) -> None:
    """Nothing but parameters and the step goes from one process to the next."""
    for step in range(5):
        layer.told(module, step=step)(x)
    stored = {name: value.clone() for name, value in module.state_dict().items()}
    fresh = layer.make().double()
    fresh.load_state_dict(stored)
    layer.told(fresh, step=5)
    clause = "it resumes to the bit: all follows from parameters and the step"
    hold_same(clause, {"the result": fresh(x)}, {"the result": layer.told(module, step=5)(x)}, 0)


def _check_split(layer: _Layer, size: ChangeSize, *, sequence_parallel: bool) -> None:
    """The numbers of two ranks are those of one."""
    shape = layer.shape
    x, weight = random(BATCH, SEQ, shape.inputs), random(BATCH, SEQ, shape.outputs, seed=5)
    alone = layer.told(draw(layer.make().double()))
    whole = gradients(alone, alone, x, weight)
    clause = "TP 2 equals TP 1" + (" with sequence parallelism" if sequence_parallel else "")
    by_outputs = shape.split == "outputs"

    def rank(tensor: TensorParallel) -> None:
        module = layer.make(tensor).double()
        cuts, at = cuts_of(module), f"changes.{layer.name}."
        split = {name.removeprefix(at): cut.dim for name, cut in cuts.items() if name.startswith(at)}
        hold(split == dict(size.split), f"the planner tells what is split, and where: {split}, not {dict(size.split)}")
        draw(module, tensor)
        layer.told(module)
        positions = tensor.positions(SEQ)
        columns = Cut(2, shape.sections if by_outputs else (shape.inputs,), tensor.rank, tensor.size)

        def mine(value: Tensor, *, cut: bool) -> Tensor:
            return columns.of(value) if cut else value[:, positions]

        got = gradients(module, module, mine(x, cut=not by_outputs), mine(weight, cut=by_outputs))
        wanted = {
            name: mine(value, cut=by_outputs)
            if name == "the result"
            else mine(value, cut=not by_outputs)
            if name == "the gradient of the input"
            else cuts[own].of(value)
            if (own := name.removeprefix("the gradient of ")) in cuts
            else value
            for name, value in whole.items()
        }
        hold_same(clause, got, wanted)

    run_ranks(2, rank, sequence_parallel=sequence_parallel)
    hold(True, clause)  # what is told in the thread of a rank is not heard

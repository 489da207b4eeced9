"""The check of a mixer against `neox_gpt.api.Mixer`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from attrs import evolve, frozen
from neox_author.testing.clauses import clauses, hold, not_applicable
from neox_author.testing.in_layouts import check_in_layouts, whole_name
from neox_author.testing.plugins import build
from neox_author.testing.ranks import hold_same, run_ranks
from torch import Tensor, nn

from neox_core.hooks.component import load_path
from neox_core.parallel.tensor import ALONE, TensorParallel
from neox_gpt.attention.cache import DecodingCache
from neox_gpt.config.told import dimension
from neox_gpt.contracts import ByHead, MixerShape, MixerSize
from neox_gpt.scope import Scope
from neox_gpt.testing.layer_clauses import (
    DECODER,
    check_accumulation,
    check_added,
    check_calls,
    check_finite_differences,
    check_modes,
    check_names,
    check_no_wait,
    check_recomputed,
    random,
)
from neox_gpt.testing.mixer_clauses import check_causal, check_decoding, check_documents, check_samples, decoded
from neox_gpt.testing.ranks import cuts_of, draw, gradients, on_rank
from neox_gpt.testing.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from neox_core.hooks.catalog import Catalog

BATCH, SEQ, HIDDEN = 3, 8, 16
WHAT = "a mixer"
SHAPE = MixerShape(HIDDEN, 4, 2, SEQ, layer=1)
FORMS = (SHAPE, evolve(SHAPE, num_kv_heads=4, bias=False))
KEYS = (5, 2**40, -7)
DRAWS = 256
DOCUMENTS = ((0, 0, 0, 1, 1, 1, 1, 1), (0,) * SEQ, (0, 1, 2, 2, 2, 2, 3, 3))


@clauses
def check_mixer(catalog: Catalog, name: str, *, trained: bool = False, **settings: Any) -> None:
    """Raises AssertionError naming the clause of `neox_gpt.api.Mixer` that the mixer breaks, and the first tensor that
    differs.

    It is run whole, on two tensor-parallel ranks, and on two with sequence parallelism; the ranks are threads.
    Then it is in all layers of a small decoder, in several layouts. trained: also train that decoder in them, see
    `neox_author.testing.in_layouts`.
    """
    entry = catalog.find("mixer", name)
    target, built, path = entry.load(), build(entry, **settings), entry.component.planner
    hold(path is not None, "a mixer has a planner: Component(planner=...)")
    planner = load_path(str(path))
    for shape in FORMS:
        size = planner(shape, built)
        make: Callable[..., Any] = partial(_make, target, shape, built)
        _check_size(make(), size, shape)
        _check_whole(make, size)
        if size.one_rank_only:
            not_applicable("TP 2 equals TP 1", "it is for one rank only")
            continue
        for sequence_parallel in (False, True):
            _check_split(make, size, sequence_parallel=sequence_parallel)
    _check_uses(lambda shape: planner(shape, built))
    if "dropout" in planner(SHAPE, built).uses:
        dropping = partial(_make, target, evolve(SHAPE, dropout=0.5), built)
        _check_dropout(dropping, planner(SHAPE, built))
        _check_kept(_make(target, evolve(SHAPE, dropout=0.5, bias=False), built), planner(SHAPE, built))
    else:
        not_applicable("dropout follows from the keys of the samples", "it has none")
    wide = MixerShape(128, 4, 4, 768)
    size = planner(wide, built)
    check_accumulation(target(wide, ALONE, built), _Run(size), random(1, 768, 128))
    everywhere = [[[whole_name(entry)], "all"]]
    check_in_layouts(catalog, "architecture", DECODER, trained=trained, attention_config=everywhere, **settings)


def _make(target: Any, shape: MixerShape, settings: Any, tensor: TensorParallel = ALONE) -> Any:
    return target(shape, tensor, settings)


@frozen
class _Run:
    """A call of a mixer as a block makes it."""

    size: MixerSize
    documents: Tensor | None = None
    keys: Tensor | None = None
    position: Any = Turn()

    def __call__(self, module: nn.Module, x: Tensor, *, cache: DecodingCache | None = None, layer: int = 0) -> Tensor:
        first, seq, within = 0 if cache is None else cache.length, x.shape[1], None
        if self.documents is not None:
            seq, within = self.documents.shape[1], _within(self.documents)
        positions = torch.arange(first, first + seq) if within is None else within
        position = self.position if self.size.needs_positions else None
        prepared = None if position is None else position.prepare(positions, x.dtype)
        result: Tensor = module(x, position, Scope(prepared, self.keys, self.documents, within, cache), layer)
        return result


def _within(documents: Tensor) -> Tensor:
    """The place of each token in its document."""
    same = documents[:, :, None] == documents[:, None]
    return same.tril().sum(-1) - 1


def _check_size(module: Any, size: Any, shape: MixerShape) -> None:
    hold(isinstance(size, MixerSize), "the planner gives a MixerSize")
    hold(isinstance(module, nn.Module), f"{WHAT} is a torch.nn.Module")
    norms = tuple(f"{name}." for name in size.norms)
    told = (each for each in module.named_parameters() if not each[0].startswith(norms))  # theirs the norm tells
    own = {name: tuple(parameter.shape) for name, parameter in told}
    hold(dict(size.shapes) == own, f"the planner tells the shape of each parameter: {own}, and not {size.shapes}")
    weights = sum(each.numel() for each in module.parameters() if each.dim() == 2)
    hold(size.flops >= 6 * weights, f"`flops` has 6 for each weight, forward and backward: {6 * weights} or more")
    for name, how in size.split.items():
        whole = not isinstance(how, ByHead) or size.shapes[name][how.dim] % how.heads == 0
        hold(name in size.shapes and whole, f"`split` names parameters, and heads of equal width: {name}")


def _check_whole(make: Callable[..., Any], size: MixerSize) -> None:
    module, x = draw(make().double()), random(BATCH, SEQ, HIDDEN)
    run, packed = _Run(size), _Run(size, torch.tensor(DOCUMENTS))
    check_names(module)
    for each in (run, packed):
        check_calls(module, each, x, WHAT)
        check_modes(module, each, x)
    hold(bool(run(module, x * 0).isfinite().all()), "zeros give finite values")
    check_samples(module, run, x)
    if size.causal:
        check_causal(module, run, x)
        check_causal(module, packed, x)
    else:
        not_applicable("causal: a change at a token alters nothing before it", "it declares that it is not")
    check_documents(module, run, packed, x, DOCUMENTS)
    if size.decodes:
        check_decoding(module, run, x)
    else:
        not_applicable("decoding with a state", "it has none")
    if size.needs_positions:
        plain = _Run(size, position=Turn(0.0, 0.0))(module, x)
        for what, position in (("rotate", Turn(1.0, 0.0)), ("score_bias", Turn(0.0, 1.0))):
            changed = _Run(size, position=position)(module, x)
            hold(bool((changed - plain).abs().amax() > 1e-6), f"a mixer with `needs_positions` uses `{what}`")
    else:
        not_applicable("a mixer with `needs_positions` uses the position", "it needs none")
    for each in (run, packed):
        check_finite_differences(module, each, x)
        check_added(module, each, x)
        check_recomputed(module, each, x)
        check_no_wait(module, each, x)


def _check_uses(tell: Callable[[MixerShape], MixerSize]) -> None:
    """That `uses` names the fields of the shape that change the parameters."""
    used, before = tell(SHAPE).uses, tell(SHAPE).shapes
    for name, changed in (("bias", evolve(SHAPE, bias=False)), ("num_kv_heads", evolve(SHAPE, num_kv_heads=4))):
        changes = dict(tell(changed).shapes) != dict(before)
        hold(changes == (name in used), f"`uses` names what changes the parameters: {name}, {changes}")


def _check_dropout(make: Callable[..., Any], size: MixerSize) -> None:
    module, x, keys = draw(make().double()), random(BATCH, SEQ, HIDDEN), torch.tensor(KEYS)
    run = _Run(size, keys=keys)
    check_calls(module, run, x, WHAT)
    clause = "dropout follows from the keys of the samples"
    whole = run(module, x)
    hold(not torch.equal(whole, _Run(size)(module, x)), f"{clause}: without keys there is none")
    hold(not torch.equal(whole, run(module, x, layer=2)), f"{clause} and the layer")
    alone = [_Run(size, keys=keys[at : at + 1])(module, x[at : at + 1]) for at in range(BATCH)]
    hold_same(f"{clause}, not from the micro-batch", {"the result": torch.cat(alone)}, {"the result": whole})
    check_recomputed(module, run, x)
    if not size.one_rank_only:
        _check_split(make, size, keys=keys, sequence_parallel=False)


def _check_kept(module: Any, size: MixerSize) -> None:
    """What dropout leaves on average, of a mixer without biases."""
    x = random(1, SEQ, HIDDEN).expand(DRAWS, -1, -1)
    with torch.no_grad():
        whole = _Run(size)(draw(module.double()), x[:1])
        mean = _Run(size, keys=torch.arange(DRAWS))(module, x).mean(0, keepdim=True)
    kept = float((mean * whole).sum() / whole.square().sum())
    hold(
        0.8 < kept < 1.25,
        f"dropout scales what it keeps: on average the result is that without; it is {kept:.2f} of it",
    )


def _check_split(
    make: Callable[..., Any], size: MixerSize, *, sequence_parallel: bool, keys: Tensor | None = None
) -> None:
    """The numbers of two ranks are those of one."""
    x, weight = random(BATCH, SEQ, HIDDEN), random(BATCH, SEQ, HIDDEN, seed=5)
    run = _Run(size, torch.tensor(DOCUMENTS), keys)
    alone = draw(make().double())
    whole = gradients(alone, partial(run, alone), x, weight)
    decoding = size.decodes and not sequence_parallel and keys is None
    text = decoded(alone, _Run(size), x, (5, 1, 2)) if decoding else None
    clause = "TP 2 equals TP 1" + (" with sequence parallelism" if sequence_parallel else "")

    def rank(tensor: TensorParallel) -> None:
        module = make(tensor=tensor).double()
        cuts, mine = cuts_of(module), tensor.positions(SEQ)
        split = {name: cut.dim for name, cut in cuts.items()}
        told = {name: dimension(how) for name, how in size.split.items()}
        hold(split == told, f"the planner tells what is split, and where: {split}, not {told}")
        draw(module, tensor)
        got = gradients(module, partial(run, module), x[:, mine], weight[:, mine])
        hold_same(clause, got, on_rank(whole, tensor, cuts, SEQ))
        if text is not None:
            again = {"the result": decoded(module, _Run(size), x, (5, 1, 2))}
            hold_same(f"{clause} while decoding", again, {"the result": text})

    run_ranks(2, rank, sequence_parallel=sequence_parallel)

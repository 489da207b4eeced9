"""`pipe-partition-method: time` and `time+head`: a row of layers is cut by the time that each takes on the ranks.

A resumed run keeps the cut of its checkpoint: the norm of the gradient is added up by stages, so it would differ after
another cut.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from attrs import frozen
from neox_plain.api import Criterion
from torch import Tensor, nn

from neox_core.checkpoint.rng import undisturbed
from neox_core.contracts.objective import Batch
from neox_core.errors import CheckpointError
from neox_core.parallel.context import DTYPES
from neox_core.parallel.sample_keys import sample_keys
from neox_core.plan.stored.saved import STATE, read_stored
from neox_core.plan.stored.stores import checkpoint_to_load, open_stores
from neox_deepspeed.shared_head import WHOLE, SharedOutputs, cut_with_head

if TYPE_CHECKING:
    from neox_core.contracts.objective import Outputs
    from neox_core.parallel.context import BuildContext
    from neox_core.parallel.row import Row, RowLayer
    from neox_core.plan.runfile import CheckpointPlan, RunPlan

RunLayers = Callable[[Sequence[tuple["RowLayer", Callable[[Any, Any], Any]]], Any], Any]
"""What passes a micro-batch through some layers of a stage."""
MOST_CALLS, ENOUGH_S = 5, 2.0
"""A layer is called as often after its first call as fits this time, once at least."""
_AGAIN = ", so layers are measured again"


SHARED = "time+head"
"""The value of `pipe-partition-method` with which stages share the output layer: see `shared_head`."""
BY_TIME = ("time", SHARED)


@frozen
class Cut:
    """parts: where each stage begins in the row, then the end of the row. notes: lines for people.

    shares: of the output layer, as `shared_head.cut_with_head`; () where the last stage has it alone.
    """

    parts: tuple[int, ...]
    notes: tuple[str, ...]
    shares: tuple[int, ...] = ()


def cut_by_time(
    plan: RunPlan, row: Row, context: BuildContext, draw: Callable[[nn.Module], None], run: RunLayers
) -> Cut:
    """Where `plan` cuts `row`: as in the checkpoint that the run resumes from, else as `best_cut` of what was measured.

    Collective; all ranks get the same.
    """
    layers, stages = tuple(row.layers), plan.cluster.pipeline_parallel
    found = [_stored(plan.checkpoint) if dist.get_rank() == 0 else ()]
    dist.broadcast_object_list(found, 0, device=context.device)
    stored, kept = _parted(found[0])
    blocks = [each.recomputed or not plan.optim.zero_stage for each in layers]  # ZeRO waits for groups as of a block
    shared = plan.cluster.partition == SHARED
    fits = len(stored) == stages + 1 and stored[-1] == len(layers) and bool(kept) == shared
    if fits and _all_have(blocks, stored):
        said = f"the pipeline is cut as in the checkpoint, into stages of {_counts(stored)} layers{_percent(kept)}"
        return Cut(stored, (said,), kept)
    with undisturbed():
        costs, trained = _measure(plan, row, context, draw, run)
    needed = blocks if plan.optim.zero_stage else trained
    shares: tuple[int, ...] = ()
    parts = best_cut(costs, needed, stages)
    if shared:
        parts, shares = cut_with_head(costs, parts, partial(_all_have, needed))
    total, times = sum(costs), {layer.kind: cost for layer, cost in zip(layers[:-1], costs, strict=False)}
    times[f"{layers[-1].kind} with the loss"] = costs[-1]
    of_head = [share / WHOLE for share in shares] or [*[0.0] * (stages - 1), 1.0]
    before = [sum([*costs[:-1], 0.0][begin:end]) for begin, end in pairwise(parts)]
    loads = [load + share * costs[-1] for load, share in zip(before, of_head, strict=True)]
    whole = " and ".join(f"{100 * load / total:.1f} %" for load in loads)
    listed = ", ".join(f"{kind} {1000 * cost:.3g} ms" for kind, cost in times.items())
    cut = f"the pipeline is cut by time into stages of {_counts(parts)} layers{_percent(shares)}"
    note = f"{cut}, {whole} of a micro-batch: {listed}"
    again: tuple[str, ...] = ()
    if stored and len(stored) != stages + 1:
        again = (f"the checkpoint has {len(stored) - 1} pipeline stages and this run {stages}{_AGAIN}",)
    elif stored and bool(kept) != shared:
        again = (f"the checkpoint was cut by {BY_TIME[bool(kept)]} and this run is by {BY_TIME[shared]}{_AGAIN}",)
    return Cut(parts, (*again, note), shares)


def best_cut(costs: Sequence[float], trained: Sequence[bool], stages: int) -> tuple[int, ...]:
    """Where each stage begins, and the end of the row: the slowest stage is as fast as possible.

    Of such cuts it is the one with the smallest sum of squares. costs: of each layer, in seconds.
    trained: the layers with parameters to train; each stage gets one, where there are enough.
    """
    sums = [0.0, *accumulate(costs)]
    known = [0, *accumulate(map(int, trained))]
    enough = known[-1] >= stages

    def cut(limit: float, add: Callable[[float, float], float]) -> tuple[float, tuple[int, ...]]:
        best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, (0,))}
        for _ in range(stages):
            ways: dict[int, list[tuple[float, tuple[int, ...]]]] = {}
            for begin, (worth, parts) in best.items():
                for end in range(begin + 1, len(sums)):
                    cost = sums[end] - sums[begin]
                    if cost <= limit and (known[end] > known[begin] or not enough):
                        ways.setdefault(end, []).append((add(worth, cost), (*parts, end)))
            best = {end: min(some) for end, some in ways.items()}
        return best[len(costs)]

    slowest, _ = cut(float("inf"), max)
    return cut(slowest, lambda worth, cost: worth + cost * cost)[1]


def _all_have(wanted: Sequence[bool], parts: Sequence[int]) -> bool:
    """Whether each stage has a layer that is wanted."""
    return all(any(wanted[begin:end]) for begin, end in pairwise(parts))


def _counts(parts: Sequence[int]) -> str:
    return " and ".join(str(end - begin) for begin, end in pairwise(parts))


def _percent(shares: Sequence[int]) -> str:
    listed = " and ".join(f"{100 * each / WHOLE:.0f}" for each in shares)
    return f" with {listed} % of the output layer" if shares else ""


def _stored(plan: CheckpointPlan) -> tuple[int, ...]:
    """The cut in the checkpoint that the run starts from; () where there is none, or none was measured."""
    stores, folder = open_stores(plan), None
    try:
        folder, own = checkpoint_to_load(plan, stores)
        if folder is None or (plan.finetune and not own):
            return ()
        stages = read_stored(folder, STATE)[0].get("stages", ())
    except CheckpointError:  # which loading the checkpoint raises again, on every rank
        return ()
    finally:
        if folder is not None and any(each.folder in (folder, folder.parent) for each in stores.values()):
            shutil.rmtree(folder, ignore_errors=True)
    known = isinstance(stages, list) and all(type(each) is int and each >= 0 for each in stages)
    return tuple(stages) if known else ()


def _parted(stored: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """`Cut.parts` and `Cut.shares` of what a checkpoint has; () for anything else."""
    count = len(stored) // 2
    shares = stored[count + 1 :] if len(stored) % 2 and sum(stored[count + 1 :]) == WHOLE else ()
    parts = stored[: len(stored) - len(shares)]
    return (parts, shares) if parts[:1] == (0,) and sorted({*parts}) == [*parts] else ((), ())


def _measure(
    plan: RunPlan, row: Row, context: BuildContext, draw: Callable[[nn.Module], None], run: RunLayers
) -> tuple[list[float], list[bool]]:
    """(the seconds of each layer, forward and backward, of one micro-batch; whether it has parameters to train).

    One layer of each kind, structure and shape is measured, the last one with the loss, on all ranks at once; the
    seconds are the mean of all ranks.
    """
    layers = tuple(row.layers)
    kinds = [_kind(layer) for layer in layers]
    first: dict[Any, RowLayer] = dict(zip(reversed(kinds), reversed(layers), strict=True))
    modules = {layer.module: layer.make() for layer in first.values()}
    root = _placed(modules)
    for module in row.shared.values():
        module.to(device=context.device)
    draw(root)
    root.to(device=context.device, dtype=context.dtype)
    for each in root.modules():
        if hasattr(each, "at_step"):
            each.at_step(0)
    passed, judge = _inputs(plan, row, context, modules[layers[0].module])
    seconds: dict[Any, float] = {}
    for at, (layer, kind) in enumerate(zip(layers, kinds, strict=True)):
        last = at == len(layers) - 1
        if (kind, last) in seconds:
            continue
        module = modules[first[kind].module]
        call = partial(_pass, partial(run, [(layer, partial(layer.run, module))]), passed)
        seconds[kind, last] = _seconds(partial(_cost, call, partial(judge, module) if last else None), context)
        passed = passed if last else call()
    for module in row.shared.values():
        module.zero_grad(set_to_none=True)
    mine = torch.tensor([seconds[kind, at == len(layers) - 1] for at, kind in enumerate(kinds)], dtype=torch.float64)
    ranks = mine.to(context.device)
    dist.all_reduce(ranks)
    dist.broadcast(ranks, 0)  # a sum may differ between ranks in its last digit
    trains = {kind: any(each.requires_grad for each in modules[first[kind].module].parameters()) for kind in first}
    return (ranks / dist.get_world_size()).tolist(), [trains[kind] for kind in kinds]


def _kind(layer: RowLayer) -> tuple[Any, ...]:
    """What layers that take equally long have in common."""
    with torch.device("meta"):
        module = layer.make()
    shapes = tuple((name, tuple(each.shape)) for name, each in module.named_parameters())
    return layer.kind, tuple(type(each) for each in module.modules()), shapes


def _placed(modules: Mapping[str, nn.Module]) -> nn.Module:
    """A module that has some of the whole model under their names there."""
    root = nn.Module()
    for name, module in modules.items():
        *outer, own = name.split(".")
        within = root
        for part in outer:
            if part not in dict(within.named_children()):
                within.add_module(part, nn.Module())
            within = within.get_submodule(part)
        within.add_module(own, module)
    return root


def _inputs(
    plan: RunPlan, row: Row, context: BuildContext, embedding: nn.Module
) -> tuple[tuple[Tensor, ...], Callable[[nn.Module, Any], Tensor]]:
    """What the first layer gets of a micro-batch, and the loss of it: (last layer, its output) -> a scalar."""
    criterion, count = Criterion(plan.objective, plan), plan.batch.micro_batch
    rows = min((each.shape[0] for each in embedding.parameters() if each.dim() == 2), default=1)
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(rows, (count, plan.model.seq_length + 1), generator=random).to(context.device)
    keys = sample_keys(context.seed, 0, count, context.device)
    batch = Batch(tokens, keys if criterion.draws else None, row.documents)
    sent = (keys,) if row.draws or plan.curriculum is not None else ()

    def judge(last: nn.Module, passed: Any) -> Tensor:
        def run(tokens: Tensor) -> Outputs:
            outputs = row.outputs(last, passed)
            return SharedOutputs(outputs, ()) if plan.cluster.partition == SHARED else outputs

        dtype = DTYPES[plan.precision.autocast] if plan.precision.autocast else None
        with torch.autocast(context.device.type, dtype, enabled=dtype is not None):
            return criterion.of(batch, measures=False)(run)

    return (criterion.objective.inputs(batch).contiguous(), *sent), judge


def _pass(run: Callable[[Any], Any], passed: Any) -> Any:
    """The output of a layer for an input that was received, as that of another stage."""
    several = not isinstance(passed, Tensor)
    received = [each.detach().requires_grad_(each.is_floating_point()) for each in (passed if several else (passed,))]
    return run(tuple(received) if several else received[0])


def _cost(call: Callable[[], Any], judge: Callable[[Any], Tensor] | None) -> None:
    gives = call()
    if judge is not None:
        judge(gives).backward()
        return
    sent = [each for each in (gives if isinstance(gives, tuple) else (gives,)) if each.requires_grad]
    torch.autograd.backward(sent, [torch.ones_like(each) for each in sent])


def _seconds(call: Callable[[], None], context: BuildContext) -> float:
    """The quickest of a few calls after the first one; all ranks make equally many, each at the time of the others.

    On a CPU it is time of the processor, which other processes of the machine do not change.
    """
    on_gpu = context.device.type == "cuda"
    clock = time.perf_counter if on_gpu else time.process_time

    def once() -> float:
        if on_gpu:
            torch.cuda.synchronize(context.device)
        began = clock()
        call()
        if on_gpu:
            torch.cuda.synchronize(context.device)
        return clock() - began

    longest = torch.tensor(once(), dtype=torch.float64, device=context.device)
    dist.all_reduce(longest, dist.ReduceOp.MAX)
    return min(once() for _ in range(max(1, min(MOST_CALLS, int(ENOUGH_S / max(float(longest), 1e-6))))))

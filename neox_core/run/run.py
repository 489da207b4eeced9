"""What a rank does, in order: join the others, build, load, train, evaluate, part."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from datetime import timedelta
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from attrs import frozen
from torch.distributed.rendezvous import rendezvous

from neox_core.checkpoint.checkpointer import Checkpointer, Resumed
from neox_core.checkpoint.lock import claim
from neox_core.checkpoint.rng import seed_rank, undisturbed
from neox_core.contracts.engine import Peak
from neox_core.contracts.host import Monitor, Progress, RunInfo
from neox_core.data.batches import build_tokenizer
from neox_core.data.curriculum import build_curriculum, tokens_of_steps
from neox_core.data.vocabulary import padded_vocab
from neox_core.heartbeat import Heartbeat
from neox_core.kernels.choose import use_kernels
from neox_core.parallel.context import BuildContext, build_context
from neox_core.parallel.groups import Groups, build_groups
from neox_core.run.consumed import require_consumed
from neox_core.run.digests import compare, describe
from neox_core.run.evaluation import Evaluation
from neox_core.run.events import Events
from neox_core.run.exit import write_failure
from neox_core.run.loop import Reporter, Saver, Stop, train
from neox_core.run.metrics import Metrics
from neox_core.run.optimizer import build_optimizer
from neox_core.run.report import Report
from neox_core.run.samples import TrainingSamples, open_samples
from neox_core.run.skipped import SkippedSteps, most_skipped
from neox_core.run.stop import SLOW, StopSignal

if TYPE_CHECKING:
    from torch import Tensor

    from neox_core.checkpoint.state import TrainState
    from neox_core.contracts import Tokenizer
    from neox_core.contracts.architecture import Architecture
    from neox_core.contracts.engine import Engine, EngineMaker
    from neox_core.contracts.objective import Split
    from neox_core.contracts.optim import LRSchedule
    from neox_core.ledger import Ledger
    from neox_core.plan.runfile import RunPlan
    from neox_core.run.startup import Startup

MEET_TIMEOUT = timedelta(minutes=10)
"""For ranks to find each other: a host may take long to import torch from a network disk."""
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""For one collective. A rank that died or hangs in training is noticed by the launcher, long before."""
UNWATCHED = (
    "the launcher does not watch its ranks: stall-timeout has no effect, one that hangs is noticed in 30 minutes"
)


def run(plan: RunPlan, maker: EngineMaker, startup: Startup, ledger: Ledger) -> None:
    """One rank of the run that `plan` describes, to its end. Raises NeoxError for what the user can fix.

    maker: of the plan's engine. ledger: where the plan notes which of its components are loaded.
    """
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    _join(plan, maker)
    groups = build_groups(plan.cluster)
    context = build_context(plan, groups, local_rank)
    claim(plan.checkpoint.save_folder, groups, context.device)
    startup.mark("process_group")

    seed_rank(plan.train.seed, rank, context.device)
    tokenizer = build_tokenizer(plan)
    vocab_size = padded_vocab(plan.model, tokenizer.vocab_size if tokenizer else None)
    curriculum = build_curriculum(plan)
    samples = open_samples(plan, groups, vocab_size, curriculum)
    startup.mark("data")
    architecture: Architecture = plan.architecture.load()[0](plan.model)
    model = _build_model(plan, architecture, maker, vocab_size, context, tokenizer)
    startup.mark("model")
    optimizer, kernels = _build_optimizer(plan, architecture, model, context)
    startup.mark("compile")
    engine = maker.build(model, optimizer, context, curriculum)
    startup.mark("engine")
    checkpointer = Checkpointer(plan, engine, context)
    resumed = checkpointer.load()
    state, schedule = resumed.state, resumed.schedule
    samples.resume(state, resumed.path)
    tokens_of = tokens_of_steps(plan, curriculum)
    report = _build_report(
        plan,
        _peak(plan.train.peak_tflops, maker, architecture, context.device),
        model,
        context,
        state,
        startup,
        samples.trail,
        tokens_of,
        engine,
        Metrics(engine, {"optimizer": optimizer, "curriculum": curriculum}, model, context),
    )
    events = _build_events(plan, context, report, state, samples, Evaluation(plan, context, vocab_size, engine))
    heartbeat = Heartbeat(local_rank)
    unwatched = () if heartbeat.watched or not plan.train.stall_timeout_s else (UNWATCHED,)
    _say_where_it_begins(report, resumed, (*kernels, *samples.notes, *unwatched))
    if rank == 0:
        require_consumed(plan, ledger)
    startup.mark("load")

    try:
        stop_signal = StopSignal(
            groups,
            heartbeat,
            step=state.step,
            stall_timeout_s=plan.train.stall_timeout_s,
            report=partial(write_failure, Path(plan.run_dir), rank, waits=True),
        )
        with stop_signal as stop:
            finished = _train(plan, engine, schedule, report, events, checkpointer, state, samples, stop, tokens_of)
        if finished and plan.train.sample_prompt is not None and tokenizer is not None:
            _show_sample(plan, architecture, model, engine, context, tokenizer, vocab_size, report)
    finally:
        report.close()
    maker.finish(rank)
    _part()


def _join(plan: RunPlan, maker: EngineMaker) -> None:
    """Find the other ranks, see that they are about to do the same, and start the process group."""
    store, rank, world_size = next(rendezvous("env://", timeout=MEET_TIMEOUT))
    store.set_timeout(MEET_TIMEOUT)
    compare(store, describe(plan, maker.libraries), rank, world_size)
    dist.init_process_group(
        plan.cluster.backend,
        store=dist.PrefixStore("neox", store),
        rank=rank,
        world_size=world_size,
        timeout=max(COLLECTIVE_TIMEOUT, timedelta(seconds=SLOW * plan.train.stall_timeout_s)),
    )


def _build_model(
    plan: RunPlan,
    architecture: Architecture,
    maker: EngineMaker,
    vocab_size: int,
    context: BuildContext,
    tokenizer: Tokenizer | None,
) -> Any:
    """The model, or this rank's stage of it."""
    eod, by = tokenizer.eod if tokenizer else None, maker.recompute_by()
    if context.groups.pipe_size > 1:
        return architecture.build_stage(plan, vocab_size, context, maker.build_stage(), eod=eod, recompute_by=by)
    return architecture.build(vocab_size, context, eod=eod, recompute_by=by)


def _build_optimizer(
    plan: RunPlan, architecture: Architecture, model: Any, context: BuildContext
) -> tuple[torch.optim.Optimizer, tuple[str, ...]]:
    """The optimizer, and what is to be said of the kernels that it and the model were given."""
    steps, data = plan.train.train_iters, context.groups.data
    optimizer = build_optimizer(plan.optim, model, data, architecture.tables, total_steps=steps)
    dtype = torch.bfloat16 if plan.precision.autocast else context.dtype
    record = Path(plan.run_dir) / "kernels.json" if dist.get_rank() == 0 else None
    return optimizer, tuple(use_kernels(model, architecture, plan.model.kernels, context, dtype, record, optimizer))


def _train(
    plan: RunPlan,
    engine: Engine,
    schedule: LRSchedule,
    report: Report,
    events: Events | None,
    checkpointer: Checkpointer,
    state: TrainState,
    samples: TrainingSamples,
    stop: StopSignal,
    tokens_of: Callable[[int], int],
) -> bool:
    """Train, and evaluate after the last step. Returns whether the run came to its last step."""
    progress = report.run.progress
    valid = partial(_alive, partial(samples.valid, "valid"), stop, progress)
    saver = _Patient(checkpointer, stop, samples, progress)

    def loop(reporter: Reporter, saver: Saver, stopping: Stop) -> bool:
        batches = report.timed(samples.batches(state.step), stop.alive)
        return train(engine, batches, valid, schedule, reporter, saver, stopping, state, plan, tokens_of)

    finished = events.train(loop, checkpointer, samples, saver, stop) if events else loop(report, saver, stop)
    if finished:
        _evaluate(plan, engine, events or report, state, samples, stop, progress)
    else:
        _say_where_it_stops(plan, report, state)
    if events:
        events.end()
    return finished


def _say_where_it_begins(report: Report, resumed: Resumed, notes: Sequence[str]) -> None:
    if resumed.path is not None:
        report.say(f"resumed from {resumed.path}, at step {resumed.state.step}")
    for note in (*resumed.notes, *notes):
        report.say(note)


def _peak(given: float | None, maker: EngineMaker, architecture: Architecture, device: torch.device) -> Peak:
    return maker.find_peak(device, architecture.product) if given is None else Peak.given(given)


def _build_report(
    plan: RunPlan,
    peak: Peak,
    model: Any,
    context: BuildContext,
    state: TrainState,
    startup: Startup,
    data_hash: Callable[[int], int],
    tokens_of: Callable[[int], int],
    engine: Engine,
    metrics: Metrics,
) -> Report:
    info = RunInfo(
        run_dir=Path(plan.run_dir),
        first_step=state.step,
        last_step=plan.train.train_iters,
        num_parameters=sum(map(prod, engine.shapes().values())),
        num_ranks=plan.cluster.world_size,
        tokens_per_step=plan.batch.train_batch * plan.model.seq_length,
        device=plan.cluster.device,
        samples_per_step=plan.batch.train_batch,
        progress=startup.progress,
    )
    startup.progress.reached(state.step)
    startup.hide()
    monitors: list[Monitor] = []
    if dist.get_rank() == 0:
        for reference in plan.monitors:
            with undisturbed():
                monitors.append(reference.make(info))
    report = Report(
        info,
        monitors,
        context.groups,
        context.device,
        log_interval=plan.train.log_interval,
        flops_per_token=model.flops_per_token,
        peak=peak,
        stop_on_nonfinite=plan.train.on_nonfinite_loss == "stop",
        skipped=SkippedSteps(most_skipped(plan), engine.find_nonfinite, context.groups),
        startup=startup,
        data_hash=data_hash,
        tokens_of=tokens_of,
        metrics=metrics,
    )
    report.say(str(peak))
    return report


def _build_events(
    plan: RunPlan,
    context: BuildContext,
    report: Report,
    state: TrainState,
    samples: TrainingSamples,
    door: Evaluation,
) -> Events | None:
    if not plan.callbacks and not plan.evaluators:
        return None
    events = Events(plan, context, report, state, door)
    events.build(samples)
    return events


@frozen
class _Patient:
    """A checkpointer that may take its time when the run was asked to stop, and keeps which samples were last."""

    checkpointer: Checkpointer
    stop: StopSignal
    samples: TrainingSamples
    progress: Progress

    def save(self, state: TrainState) -> Path | str | None:
        self.samples.note(state)
        with self.stop.busy(), self.progress.during("saving"):
            return self.checkpointer.save(state)


def _alive(batches: Callable[[], Iterator[Tensor]], stop: StopSignal, progress: Progress) -> Iterator[Tensor]:
    with progress.during("evaluating"):
        stop.evaluating()
        for batch in batches():
            stop.alive()
            yield batch


def _evaluate(
    plan: RunPlan,
    engine: Engine,
    report: Report | Events,
    state: TrainState,
    samples: TrainingSamples,
    stop: StopSignal,
    progress: Progress,
) -> None:
    """After the last step: the validation split unless it was evaluated there, and the test split if there is one."""
    if not plan.train.eval_iters:
        return
    wanted: list[Split] = []
    if plan.train.eval_interval and state.step % plan.train.eval_interval:
        wanted.append("valid")
    if plan.data.has_test:
        wanted.append("test")
    for split in wanted:
        report.validation(state.step, engine.evaluate(_alive(partial(samples.valid, split), stop, progress)), split)


def _whole_model(
    architecture: Architecture,
    model: Any,
    engine: Engine,
    context: BuildContext,
    tokenizer: Tokenizer,
    vocab_size: int,
) -> Any:
    """A model that rank 0 can run alone: the trained one, or where that is in parts one in host memory. Collective."""
    if not engine.partitioned and context.groups.model is None:
        return model
    keeps = dist.get_rank() == 0
    weights = {name: weight.float().cpu().clone() for name, weight in engine.whole_weights() if keeps}
    if not keeps:
        return model
    alone = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), context.seed)
    return architecture.build(vocab_size, alone, weights, eod=tokenizer.eod)


def _show_sample(
    plan: RunPlan,
    architecture: Architecture,
    model: Any,
    engine: Engine,
    context: BuildContext,
    tokenizer: Tokenizer,
    vocab_size: int,
    report: Report,
) -> None:
    """What rank 0 generates with the weights of evaluation. Collective."""
    with engine.at_hand() if "modes" in plan.optim.uses else nullcontext():
        whole = _whole_model(architecture, model, engine, context, tokenizer, vocab_size)
        if dist.get_rank() == 0:
            report.say(f"sample:\n{architecture.sample(whole, tokenizer, plan.train.sample_prompt or '')}")


def _say_where_it_stops(plan: RunPlan, report: Report, state: TrainState) -> None:
    then = (
        "`--resume auto` continues from there" if plan.checkpoint.save else "nothing is saved, since `save` is not set"
    )
    report.say(f"stopped after step {state.step}; {then}")


def _part() -> None:
    """Together, or a rank that is quicker takes the connections of the others with it."""
    dist.barrier()
    dist.destroy_process_group()

"""What a rank does, in order: join the others, build, load, train, evaluate, part."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
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

from neox_core.checkpoint.checkpointer import Checkpointer
from neox_core.checkpoint.lock import claim
from neox_core.checkpoint.rng import seed_rank, undisturbed
from neox_core.contracts.engine import Peak
from neox_core.contracts.host import Monitor, Progress, RunInfo
from neox_core.data.batches import build_tokenizer
from neox_core.data.curriculum import build_curriculum, tokens_of_steps
from neox_core.data.tokenizer import padded_vocab
from neox_core.heartbeat import Heartbeat
from neox_core.parallel.agreement import Agreement
from neox_core.parallel.context import BuildContext, build_context
from neox_core.parallel.groups import Groups, build_groups, waiting_long
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

    from neox_core.checkpoint.resume import RunSchedule
    from neox_core.contracts import Tokenizer
    from neox_core.contracts.architecture import Architecture
    from neox_core.contracts.engine import Engine, EngineMaker
    from neox_core.contracts.objective import Split
    from neox_core.plan.runfile import RunPlan
    from neox_core.plan.stored.state import TrainState
    from neox_core.run.startup import Startup

COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""For one collective. A rank that died or hangs in training is noticed by the launcher, long before."""
UNWATCHED = (
    "the launcher does not watch its ranks: stall-timeout has no effect, one that hangs is noticed in 30 minutes"
)


def run(plan: RunPlan, maker: EngineMaker, startup: Startup, ledger: set[str]) -> bool:
    """One rank of the run that `plan` describes, to its end. Raises NeoxError for what the user can fix.

    Returns False when a signal ended it before its last step. `exit-interval` and callbacks end it as the config asks.

    maker: of the plan's engine. ledger: where the plan notes which of its components are loaded.
    """
    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    _join(plan, maker)
    groups = build_groups(plan.cluster)
    # Before the engine: torch names a group by how many a rank is in, and of an engine's they may be in more or fewer.
    agreement = None if groups.world is None else Agreement(groups.world)
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
    state = resumed.state
    samples.resume(state, resumed.path)
    tokens_of = tokens_of_steps(plan, curriculum)
    built = _Built(plan, context, architecture, model, engine, tokenizer, vocab_size, samples, state, tokens_of)
    metrics = Metrics(engine, {"optimizer": optimizer, "curriculum": curriculum}, model, context)
    report = built.report(maker, startup, metrics)
    events = built.events(report)
    heartbeat = Heartbeat(local_rank)
    unwatched = () if heartbeat.watched or not plan.train.stall_timeout_s else (UNWATCHED,)
    begins = () if resumed.path is None else (f"resumed from {resumed.path}, at step {state.step}",)
    for note in (*begins, *resumed.notes, *kernels, *getattr(engine, "notes", ()), *samples.notes, *unwatched):
        report.say(note)
    if rank == 0:
        require_consumed(plan, ledger)
    startup.mark("load")

    try:
        stop_signal = StopSignal(
            agreement,
            heartbeat,
            step=state.step,
            stall_timeout_s=plan.train.stall_timeout_s,
            report=partial(write_failure, Path(plan.run_dir), rank, waits=True),
            ends=partial(checkpointer.attend, report.say),
        )
        with stop_signal as stop, waiting_long(heartbeat.watched and plan.train.stall_timeout_s > 0):
            finished = built.train(resumed.schedule, report, events, checkpointer, stop)
        if finished and plan.train.sample_prompt is not None and tokenizer is not None:
            built.show_sample(tokenizer, plan.train.sample_prompt, report)
    finally:
        checkpointer.close()
        report.close()
    maker.finish(rank)
    dist.barrier()  # or a rank that is quicker takes the connections of the others with it
    dist.destroy_process_group()
    return finished or not stop_signal.agreed


def _join(plan: RunPlan, maker: EngineMaker) -> None:
    """Find the other ranks, see that they are about to do the same, and start the process group."""
    # As the launcher sets it: a host may take long to import torch from a network disk.
    meet_timeout = timedelta(seconds=int(os.environ.get("NEOX_MEET_TIMEOUT_S", "600")))
    store, rank, world_size = next(rendezvous("env://", timeout=meet_timeout))
    store = dist.PrefixStore(os.environ.get("NEOX_RUN_TOKEN", "run"), store)  # of this run, not of one before
    store.set_timeout(meet_timeout)
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
    said = architecture.use_kernels(model, context, dtype, record, optimizer) if plan.model.kernels else ()
    return optimizer, tuple(said)


@frozen
class _Built:
    """What a rank has built. vocab_size: rows of the embedding."""

    plan: RunPlan
    context: BuildContext
    architecture: Architecture
    model: Any
    engine: Engine
    tokenizer: Tokenizer | None
    vocab_size: int
    samples: TrainingSamples
    state: TrainState
    tokens_of: Callable[[int], int]

    def report(self, maker: EngineMaker, startup: Startup, metrics: Metrics) -> Report:
        plan, context, progress = self.plan, self.context, startup.progress
        given = plan.train.peak_tflops
        peak = maker.find_peak(context.device, self.architecture.product) if given is None else Peak.given(given)
        info = RunInfo(
            run_dir=Path(plan.run_dir),
            first_step=self.state.step,
            last_step=plan.train.train_iters,
            num_parameters=sum(map(prod, self.engine.shapes().values())),
            num_ranks=plan.cluster.world_size,
            tokens_per_step=plan.batch.train_batch * plan.model.seq_length,
            device=plan.cluster.device,
            samples_per_step=plan.batch.train_batch,
            progress=progress,
        )
        progress.reached(self.state.step)
        startup.hide()
        find_source = getattr(self.engine, "find_source", str)
        monitors: list[Monitor] = []
        for reference in plan.monitors if dist.get_rank() == 0 else ():
            with reference.blamed(), undisturbed():
                monitors.append(reference.make(info))
        report = Report(
            info,
            monitors,
            context.groups,
            context.device,
            log_interval=plan.train.log_interval,
            flops_per_token=self.model.flops_per_token,
            peak=peak,
            stop_on_nonfinite=plan.train.on_nonfinite_loss == "stop",
            skipped=SkippedSteps(most_skipped(plan), self.engine.find_nonfinite, context.groups, find_source),
            startup=startup,
            data_hash=self.samples.trail,
            tokens_of=self.tokens_of,
            metrics=metrics,
        )
        report.say(str(peak))
        return report

    def events(self, report: Report) -> Events | None:
        if not self.plan.callbacks and not self.plan.evaluators:
            return None
        door = Evaluation(self.plan, self.context, self.vocab_size, self.engine)
        events = Events(self.plan, self.context, report, self.state, door)
        events.build(self.samples)
        return events

    def train(
        self, schedule: RunSchedule, report: Report, events: Events | None, checkpointer: Checkpointer, stop: StopSignal
    ) -> bool:
        """Train, and evaluate after the last step. Returns whether the run came to its last step."""
        plan, state, samples, progress = self.plan, self.state, self.samples, report.run.progress

        def valid(split: Split = "valid") -> Iterator[Tensor]:
            with progress.during("evaluating"):
                stop.evaluating()
                for batch in samples.valid(split):
                    stop.alive()
                    yield batch

        def loop(reporter: Reporter, saver: Saver, stopping: Stop) -> bool:
            batches = report.timed(samples.batches(state.step), stop.alive)
            return train(self.engine, batches, valid, schedule, reporter, saver, stopping, state, plan, self.tokens_of)

        saver = _Patient(checkpointer, stop, samples, progress, report.say)
        finished = events.train(loop, checkpointer, samples, saver, stop) if events else loop(report, saver, stop)
        if finished:
            for split in self._unevaluated():
                (events or report).validation(state.step, self.engine.evaluate(valid(split)), split)
        else:
            resumes = "`--resume auto` continues from there"
            then = resumes if plan.checkpoint.save else "nothing is saved, since `save` is not set"
            report.say(f"stopped after step {state.step}; {then}")
        saver.wait()
        if events:
            events.end()
        return finished

    def _unevaluated(self) -> Iterator[Split]:
        """After the last step: validation unless it was evaluated there, and the test split if there is one."""
        train = self.plan.train
        if train.eval_iters and train.eval_interval and self.state.step % train.eval_interval:
            yield "valid"
        if train.eval_iters and self.plan.data.has_test:
            yield "test"

    def show_sample(self, tokenizer: Tokenizer, prompt: str, report: Report) -> None:
        """What rank 0 generates with the weights of evaluation. Collective."""
        with self.engine.at_hand() if "modes" in self.plan.optim.uses else nullcontext():
            whole = self._whole_model(tokenizer)
            if dist.get_rank() == 0:
                report.say(f"sample:\n{self.architecture.sample(whole, tokenizer, prompt)}")

    def _whole_model(self, tokenizer: Tokenizer) -> Any:
        """A model that rank 0 can run alone: the trained one, or one in host memory where it is split. Collective."""
        if not self.engine.partitioned and self.context.groups.model is None:
            return self.model
        keeps = dist.get_rank() == 0
        weights = {name: weight.float().cpu().clone() for name, weight in self.engine.whole_weights() if keeps}
        if not keeps:
            return self.model
        alone = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), self.context.seed)
        return self.architecture.build(self.vocab_size, alone, weights, eod=tokenizer.eod)


@frozen
class _Patient:
    """A checkpointer that may take its time when the run was asked to stop, and keeps which samples were last."""

    checkpointer: Checkpointer
    stop: StopSignal
    samples: TrainingSamples
    progress: Progress
    say: Callable[[str], None]

    def save(self, state: TrainState) -> Path | str | None:
        self.samples.note(state)
        with self.stop.busy(), self.progress.during("saving"):
            saved = self.checkpointer.save(state)
        self.checkpointer.attend(self.say)
        return saved

    def wait(self) -> None:
        with self.stop.busy(), self.progress.during("saving"):
            self.checkpointer.wait()
        self.checkpointer.attend(self.say)

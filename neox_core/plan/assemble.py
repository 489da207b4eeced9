"""A valid config and a cluster to the plan of a run, part by part."""

import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from attrs import asdict, evolve

from neox_core.config.schema.convert import fields_of
from neox_core.config.schema.sections.checkpoint import CheckpointSection
from neox_core.config.schema.sections.data import DataSection
from neox_core.config.schema.sections.host import LaunchSection
from neox_core.config.schema.sections.optimizer import RegularizationSection
from neox_core.config.schema.sections.schedule import LearningRateSection
from neox_core.config.schema.sections.training import TrainingSection
from neox_core.config.schema.structure import Chosen, Config
from neox_core.config.stores import split_address
from neox_core.plan.cluster import ClusterShape, cluster_plan
from neox_core.plan.component import offered
from neox_core.plan.lr_schedule import chosen_schedule, schedule_shape
from neox_core.plan.planners import architecture_planner, engine_planner, objective_planner, sharding
from neox_core.plan.runfile import (
    CheckpointPlan,
    ComponentRef,
    DataPlan,
    KernelPlan,
    OptimPlan,
    RunPlan,
    StorePlan,
    TrainPlan,
)
from neox_core.plan.split import shares

Resume = Literal["must", "auto"]


def assemble(
    config: Config, shape: ClusterShape, resume: Resume, folder: str, debug: bool, kernels: tuple[KernelPlan, ...] = ()
) -> RunPlan:
    """The plan of a config whose rules all hold."""
    batch = shape.batch(config)
    precision = engine_planner(config).precision(config)
    optim = _optim(config)
    kinds = ("architecture", "objective", "engine", "launcher")
    (architecture,), (objective,), (engine,), (launcher,) = map(config.components, kinds)
    monitors, curricula = config.components("monitor"), config.components("curriculum")
    used = {each.entry.plugin.id: each.entry.plugin.version for kind in config.chosen.values() for each in kind}
    used |= {offer.plugin: offer.version for each in kernels for offer in each.offers}
    return RunPlan(
        architecture=reference(architecture),
        objective=reference(objective),
        model=evolve(architecture_planner(config).plan(config), kernels=kernels),
        batch=batch,
        data=_data(config),
        optim=optim,
        precision=precision,
        train=_train(config),
        checkpoint=_checkpoint(config, resume, folder),
        cluster=cluster_plan(config, shape),
        launcher=reference(launcher),
        monitors=tuple(map(reference, monitors)),
        engine_component=reference(engine),
        engine=engine_planner(config).plan(config, batch, precision, gradient_clipping=optim.gradient_clipping),
        plugins=used,
        run_dir=folder,
        neox_version=version("neox-core"),
        debug=debug,
        curriculum=reference(curricula[0]) if curricula else None,
        callbacks=tuple(map(reference, config.components("callback"))),
        evaluators=tuple(map(reference, config.components("evaluator"))),
    )


def reference(chosen: Chosen, **changed: Any) -> ComponentRef:
    """A chosen component as run.json holds it: plain values, no secrets."""
    settings = {} if chosen.entry.component.settings is None else plain_settings(chosen.settings)
    return evolve(offered(chosen.entry), settings=settings | changed)


def plain_settings(settings: Any) -> dict[str, Any]:
    """An instance of a class of settings as plain values, without secrets."""
    cls: type = type(settings)
    secret = {each.name for each in fields_of(cls) if each.info.secret}
    plain = json.loads(json.dumps(asdict(settings)))
    return {key: value for key, value in plain.items() if key not in secret}


def run_dir(config: Config) -> str:
    """`save` where that is a local folder, else runs/<name of the first file>."""
    save = config.section(CheckpointSection).save
    local = save is not None and split_address(save) is None
    return str(save) if local else str(Path("runs") / config.loaded.files[0].stem)


def _data(config: Config) -> DataPlan:
    data, add = config.section(DataSection), getattr(objective_planner(config), "data", None)
    (backend,), tokenizers = config.components("data backend"), config.components("tokenizer")
    plan = DataPlan(
        prefix=data.data_path,
        split=shares(data.split),
        backend=reference(backend),
        tokenizer=reference(tokenizers[0]) if tokenizers else None,
        num_workers=data.num_workers,
    )
    return plan if add is None else add(config, plan)


def _optim(config: Config) -> OptimPlan:
    rest, shape = config.section(RegularizationSection), schedule_shape(config)
    (optimizer,) = config.components("optimizer")
    decays = hasattr(optimizer.settings, "weight_decay")
    inner = optimizer.settings.weight_decay if config.is_set("optimizer.params.weight_decay") else rest.weight_decay
    decay = inner if decays else 0.0
    same_decay = {"weight_decay": decay} if decays else {}
    return OptimPlan(
        optimizer=reference(optimizer, **same_decay),
        schedule=reference(chosen_schedule(config)),
        lr=shape.peak_lr,
        min_lr=shape.min_lr,
        warmup_steps=shape.warmup_steps,
        decay_steps=shape.decay_steps,
        weight_decay=decay,
        gradient_clipping=rest.gradient_clipping,
        zero_stage=sharding(config).stage,
        whole_parameters=optimizer.entry.component.whole_parameters,
        uses=optimizer.entry.component.uses,
    )


def _train(config: Config) -> TrainPlan:
    train = config.section(TrainingSection)
    return TrainPlan(
        train_iters=train.train_iters,
        exit_interval=train.exit_interval,
        eval_interval=train.eval_interval,
        eval_iters=train.eval_iters,
        log_interval=train.log_interval,
        seed=train.seed,
        on_nonfinite_loss=train.on_nonfinite_loss,
        max_skipped_steps=train.max_skipped_steps,
        stall_timeout_s=config.section(LaunchSection).stall_timeout,
        peak_tflops=train.peak_tflops,
        sample_prompt=train.sample_prompt,
    )


def _stores(config: Config, folder: str) -> Iterator[StorePlan]:
    checkpoint = config.section(CheckpointSection)
    chosen = {each.entry.component.name: each for each in config.components("store")}
    for url in dict.fromkeys(filter(None, (checkpoint.save, checkpoint.load))):
        if (address := split_address(url)) is not None:
            protocol, place = address
            yield StorePlan(url, reference(chosen[protocol]), str(Path(folder, ".store", protocol, place.lstrip("/"))))


def _checkpoint(config: Config, resume: Resume, folder: str) -> CheckpointPlan:
    checkpoint, rate = config.section(CheckpointSection), config.section(LearningRateSection)
    sharded = sharding(config)
    schedule_from: Literal["must-match", "config", "checkpoint"] = "must-match"
    if rate.override_lr_scheduler:
        schedule_from = "config"
    elif rate.use_checkpoint_lr_scheduler:
        schedule_from = "checkpoint"
    return CheckpointPlan(
        save=checkpoint.save,
        save_interval=checkpoint.save_interval,
        load=checkpoint.save if checkpoint.load is None and resume == "auto" else checkpoint.load,
        resume=resume,
        keep_last=checkpoint.keep_last_n_checkpoints,
        finetune=checkpoint.finetune,
        load_optimizer=not (checkpoint.no_load_optim or checkpoint.finetune),
        load_rng=not (checkpoint.no_load_rng or checkpoint.finetune),
        save_optimizer=not checkpoint.no_save_optim,
        save_rng=not checkpoint.no_save_rng,
        schedule_from=schedule_from,
        whole_weights=sharded.whole_weights,
        load_masters=sharded.load_masters,
        extra_save=checkpoint.extra_save_iters,
        stores=tuple(_stores(config, folder)),
        background=sharded.background,
    )

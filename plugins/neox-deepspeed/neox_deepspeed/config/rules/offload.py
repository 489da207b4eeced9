"""Rules of ZeRO's offload to host memory and files."""

import os
from collections.abc import Iterator
from pathlib import Path

from neox_plain.api import PrecisionSection

from neox_core.api import Problem
from neox_core.config.read.load import value_at
from neox_core.config.schema.convert import fields_of
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape, data_parallel
from neox_core.plan.rules.rule import rule
from neox_deepspeed.config.sections.aio import AioSection
from neox_deepspeed.config.sections.engine import EngineSection
from neox_deepspeed.config.sections.zero import OF_FILES, ZeroBlock, ZeroSection

PARAM, OPTIMIZER = "zero_optimization.offload_param", "zero_optimization.offload_optimizer"
CPU_ADAM = "CPU_Adam"
INCLUDES = ("/usr/include", "/usr/local/include")
ADAM_NUMBERS = 4
"""Numbers of a parameter that are written to files: itself, its gradient and two moments."""

_SMALLEST_FILE = 1 << 20
"""Bytes of a weight on a rank below which DeepSpeed keeps it in memory."""
_ON_THE_SIDE = {
    "aio.use_gds": "is not available: neox checks only reads and writes by libaio",
    f"{OPTIMIZER}.pipeline_read": "is not available: a checkpoint does not wait for reads in flight",
    f"{OPTIMIZER}.pipeline_write": "is not available: a checkpoint does not wait for writes in flight",
}


def _zero(config: Config) -> ZeroBlock:
    return config.section(ZeroSection).zero_optimization


@rule(PARAM, "zero_optimization.stage")
def offload_param_needs_stage_3(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Parameters can be offloaded only where they are sharded: at stage 3."""
    zero = _zero(config)
    if zero.offload_param is not None and zero.offload_param.device != "none" and zero.stage != 3:
        yield config.problem(f"needs stage 3, and the stage is {zero.stage}", PARAM)


@rule(OPTIMIZER, "zero_optimization.stage")
def offload_optimizer_needs_sharding(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The optimizer's state can be offloaded to host memory from stage 1 on, to files at stage 3."""
    zero = _zero(config)
    if zero.updates_on_the_host and zero.stage == 0:
        yield config.problem("needs stage 1, 2 or 3, and the stage is 0", OPTIMIZER)
    elif zero.offload_optimizer is not None and zero.offload_optimizer.device == "nvme" and zero.stage != 3:
        yield config.problem(f"nvme needs stage 3, and the stage is {zero.stage}", f"{OPTIMIZER}.device", "cpu")


@rule(f"{OPTIMIZER}.ratio", "zero_optimization.stage", "optimizer.type")
def partial_offload_fits(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A part of the update can stay on the device only at stage 3, with CPU_Adam."""
    zero = _zero(config)
    if zero.offload_optimizer is None or zero.offload_optimizer.ratio == 1:
        return
    (optimizer,) = config.components("optimizer")
    if zero.stage != 3:
        yield config.problem(f"below 1 needs stage 3, and the stage is {zero.stage}", f"{OPTIMIZER}.ratio")
    elif optimizer.entry.component.name != CPU_ADAM:
        yield config.problem(
            f"below 1 needs optimizer.type {CPU_ADAM}, not {optimizer.entry.component.name}", f"{OPTIMIZER}.ratio"
        )


@rule("zero_force_ds_cpu_optimizer", OPTIMIZER, "optimizer.type")
def forced_optimizer(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """zero_force_ds_cpu_optimizer allows only CPU_Adam for an offloaded update."""
    (optimizer,) = config.components("optimizer")
    name = optimizer.entry.component.name
    forced = config.section(ZeroSection).zero_force_ds_cpu_optimizer
    if forced and _zero(config).updates_on_the_host and name != CPU_ADAM:
        yield config.problem(
            f"allows {CPU_ADAM} only, not {name}", "zero_force_ds_cpu_optimizer", "false, or remove it"
        )


@rule(OPTIMIZER)
def one_offload(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """cpu_offload is an older spelling of an offload_optimizer block, at stages 1 and 2."""
    old = config.loaded.spelled(f"{OPTIMIZER}.device").replace("-", "_").endswith(".cpu_offload")
    if not old:
        return
    if OPTIMIZER in config.loaded.places:
        yield config.problem("means the same as the block offload_optimizer", f"{OPTIMIZER}.device", "keep the block")
    if _zero(config).stage == 3:
        yield config.problem(
            "is for stages 1 and 2", f"{OPTIMIZER}.device", "use offload_optimizer: {device: cpu} at stage 3"
        )


@rule(f"{OPTIMIZER}.buffer_count")
def buffers_hold_a_parameter(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """There is a buffer for each number of a parameter that is written to files."""
    block = _zero(config).offload_optimizer
    if block is not None and block.device == "nvme" and block.buffer_count < ADAM_NUMBERS:
        yield config.problem(f"must be {ADAM_NUMBERS} or more, not {block.buffer_count}", f"{OPTIMIZER}.buffer_count")


@rule("zero_optimization.contiguous_gradients", OPTIMIZER)
def offload_collects_gradients(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The engine copies gradients to one buffer before it moves them to the host."""
    zero = _zero(config)
    if not zero.contiguous_gradients and zero.updates_on_the_host:
        yield config.problem("cannot be false with offload_optimizer", "zero_optimization.contiguous_gradients", "true")


@rule(f"{PARAM}.device", f"{OPTIMIZER}.device", *(f"{path}.nvme_path" for path in (PARAM, OPTIMIZER)))
def keys_of_the_device(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Keys about files need device nvme, and with device none every other key does nothing."""
    zero = _zero(config)
    for path, block in ((PARAM, zero.offload_param), (OPTIMIZER, zero.offload_optimizer)):
        if block is None or block.device == "nvme":
            continue
        cls: type = block.__class__
        for each in fields_of(cls):
            key, idle = f"{path}.{each.name}", each.name in OF_FILES or block.device == "none"
            if idle and each.name != "device" and config.is_set(key):
                hint = "remove it, or device: nvme" if each.name in OF_FILES else "remove it"
                yield config.problem(f"does nothing with device {block.device}", key, hint, "note")


@rule(f"{OPTIMIZER}.fast_init", f"{PARAM}.device")
def fast_start_reads_files(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """fast_init reads the initial weights from files in batches, so the parameters must be in files."""
    zero = _zero(config)
    param, optimizer = zero.offload_param, zero.offload_optimizer
    from_files = param is not None and param.device == "nvme"
    if optimizer is not None and optimizer.device == "nvme" and optimizer.fast_init and not from_files:
        said = "does nothing unless the parameters are in files too"
        yield config.problem(said, f"{OPTIMIZER}.fast_init", "offload_param: {device: nvme}, or remove it", "note")


@rule(f"{PARAM}.pin_memory", f"{OPTIMIZER}.pin_memory", "device")
def pinning_needs_gpu(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Page-locked memory is for copies to a GPU."""
    zero = _zero(config)
    for path, block in ((PARAM, zero.offload_param), (OPTIMIZER, zero.offload_optimizer)):
        if block is not None and block.pin_memory and shape.device == "cpu":
            yield config.problem("is for copies to a GPU, and this run is on the CPU", f"{path}.pin_memory", "false")


@rule(f"{PARAM}.device", f"{OPTIMIZER}.device")
def files_need_libaio(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Offload to files needs libaio, with which DeepSpeed compiles its reader and writer."""
    zero = _zero(config)
    if not zero.uses_files or _libaio_is_here():
        return
    path = next(
        path
        for path, block in ((PARAM, zero.offload_param), (OPTIMIZER, zero.offload_optimizer))
        if block is not None and block.device == "nvme"
    )
    yield config.problem("nvme needs libaio, and this machine has no libaio.h", f"{path}.device", "install libaio-dev")


@rule("deepspeed_extra_args")
def files_are_read_in_order(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A checkpoint would miss what DeepSpeed reads and writes asynchronously."""
    extra = config.section(EngineSection).deepspeed_extra_args
    for key, reason in _ON_THE_SIDE.items():
        if value_at(extra, key):
            yield config.problem(reason, f"deepspeed_extra_args.{key}", "remove it")


@rule(f"{PARAM}.device", "zero_optimization.stage3_param_persistence_threshold", "aio.block_size", "bf16")
def whole_weights_are_in_memory(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """DeepSpeed 0.19.8 uses a wrong type for a weight that every rank keeps whole and that is also in files."""
    zero = _zero(config)
    if zero.offload_param is None or zero.offload_param.device != "nvme":
        return
    size = 4 if config.section(PrecisionSection).dtype == "fp32" else 2
    in_files = max(_SMALLEST_FILE, config.section(AioSection).aio.block_size) // size * data_parallel(config, shape)
    if zero.stage3_param_persistence_threshold >= in_files:
        yield config.problem(
            f"keeps weights whole on every rank that offload_param puts into files: those of {in_files} elements",
            "zero_optimization.stage3_param_persistence_threshold",
            f"set less than {in_files}",
        )


def _libaio_is_here() -> bool:
    folders = [*os.environ.get("CPATH", "").split(os.pathsep), *INCLUDES]
    return any((Path(folder) / "libaio.h").is_file() for folder in folders if folder)


@rule("aio", f"{PARAM}.device", f"{OPTIMIZER}.device")
def aio_has_files(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The block aio tunes access to files, so it needs an offload to nvme."""
    if config.is_set("aio") and not _zero(config).uses_files:
        yield config.problem("does nothing without an offload to nvme", "aio", severity="warning")

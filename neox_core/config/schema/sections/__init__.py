"""The core's own sections: one attrs class per area of keys."""

from neox_core.config.schema.sections.activation_checkpointing import ActivationCheckpointingSection
from neox_core.config.schema.sections.aio import AioSection
from neox_core.config.schema.sections.attention import AttentionSection
from neox_core.config.schema.sections.checkpoint import CheckpointSection, CheckpointWritingSection
from neox_core.config.schema.sections.communication import CommunicationSection
from neox_core.config.schema.sections.data import BlendSection, DataSection
from neox_core.config.schema.sections.engine import EngineSection
from neox_core.config.schema.sections.host import LaunchSection, PluginsSection, ReportSection
from neox_core.config.schema.sections.kernels import KernelsSection
from neox_core.config.schema.sections.model import ModelSection, RegularizationSection
from neox_core.config.schema.sections.optimizer import OptimizerSection
from neox_core.config.schema.sections.parallelism import ParallelismSection
from neox_core.config.schema.sections.precision import PrecisionSection
from neox_core.config.schema.sections.profiling import ProfilingSection
from neox_core.config.schema.sections.resting import RestingSection
from neox_core.config.schema.sections.schedule import LearningRateSection, SchedulerSection
from neox_core.config.schema.sections.training import BatchSection, TrainingSection
from neox_core.config.schema.sections.zero import ZeroSection
from neox_core.hooks.component import ConfigSection

CORE_SECTIONS: tuple[ConfigSection, ...] = tuple(
    ConfigSection(name, settings, (settings.__doc__ or "").partition("\n")[0])
    for name, settings in (
        ("model", ModelSection),
        ("attention", AttentionSection),
        ("activation checkpointing", ActivationCheckpointingSection),
        ("parallelism", ParallelismSection),
        ("data", DataSection),
        ("blend", BlendSection),
        ("batch", BatchSection),
        ("training", TrainingSection),
        ("optimizer", OptimizerSection),
        ("learning rate", LearningRateSection),
        ("scheduler", SchedulerSection),
        ("regularization", RegularizationSection),
        ("precision", PrecisionSection),
        ("kernels", KernelsSection),
        ("zero", ZeroSection),
        ("aio", AioSection),
        ("communication", CommunicationSection),
        ("engine", EngineSection),
        ("checkpoint", CheckpointSection),
        ("checkpoint writing", CheckpointWritingSection),
        ("launch", LaunchSection),
        ("report", ReportSection),
        ("profiling", ProfilingSection),
        ("plugins", PluginsSection),
        ("resting", RestingSection),
    )
)

__all__ = ["CORE_SECTIONS"]

"""The core's own sections: one attrs class per area of keys."""

from neox_core.config.sections.activation_checkpointing import ActivationCheckpointingSection
from neox_core.config.sections.aio import AioSection
from neox_core.config.sections.attention import AttentionSection
from neox_core.config.sections.checkpoint import CheckpointSection, CheckpointWritingSection
from neox_core.config.sections.communication import CommunicationSection
from neox_core.config.sections.data import BlendSection, DataSection
from neox_core.config.sections.engine import EngineSection
from neox_core.config.sections.host import LaunchSection, PluginsSection, ReportSection
from neox_core.config.sections.kernels import KernelsSection
from neox_core.config.sections.model import ModelSection, RegularizationSection
from neox_core.config.sections.optimizer import OptimizerSection
from neox_core.config.sections.parallelism import ParallelismSection
from neox_core.config.sections.precision import PrecisionSection
from neox_core.config.sections.profiling import ProfilingSection
from neox_core.config.sections.resting import RestingSection
from neox_core.config.sections.schedule import LearningRateSection, SchedulerSection
from neox_core.config.sections.training import BatchSection, TrainingSection
from neox_core.config.sections.zero import ZeroSection
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

"""The core's own sections: one attrs class per area of keys."""

from neox_core.config.schema.sections.checkpoint import CheckpointSection
from neox_core.config.schema.sections.choices import ChoicesSection
from neox_core.config.schema.sections.data import DataSection
from neox_core.config.schema.sections.host import LaunchSection, PluginsSection, ReportSection
from neox_core.config.schema.sections.optimizer import OptimizerSection, RegularizationSection
from neox_core.config.schema.sections.parallelism import ParallelismSection
from neox_core.config.schema.sections.schedule import LearningRateSection, SchedulerSection
from neox_core.config.schema.sections.training import BatchSection, TrainingSection
from neox_core.hooks.component import ConfigSection

CORE_SECTIONS: tuple[ConfigSection, ...] = tuple(
    ConfigSection(name, settings)
    for name, settings in (
        ("choices", ChoicesSection),
        ("parallelism", ParallelismSection),
        ("data", DataSection),
        ("batch", BatchSection),
        ("training", TrainingSection),
        ("optimizer", OptimizerSection),
        ("learning rate", LearningRateSection),
        ("scheduler", SchedulerSection),
        ("regularization", RegularizationSection),
        ("checkpoint", CheckpointSection),
        ("launch", LaunchSection),
        ("report", ReportSection),
        ("plugins", PluginsSection),
    )
)

__all__ = ["CORE_SECTIONS"]

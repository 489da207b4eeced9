"""One Protocol per kind: what a component gets, what it returns, what it may raise.

Shapes are written [batch, seq, hidden]. `settings` is an instance of the attrs class that the Component names, or None.
The first line of each docstring shows how the core calls the Component's target.
"""

from neox_core.contracts.architecture import Architecture, ArchitecturePlanner, ModelSize, Named, Untold
from neox_core.contracts.attention import LayoutShape, SparseKernel, SparseLayout, SparseUse
from neox_core.contracts.curriculum import Curriculum, CurriculumShape
from neox_core.contracts.data import (
    Corpus,
    DataBackend,
    NamedCorpus,
    ResumableBackend,
    ResumableWriter,
    StreamingBackend,
    Tokenizer,
    TokenizingBackend,
    TokenSource,
    TokenStream,
    TokenWriter,
    TrainableTokenizer,
)
from neox_core.contracts.engine import Engine, EngineMaker, EnginePlanner, Sharding, Storage
from neox_core.contracts.family import ModelFamily, WeightRule
from neox_core.contracts.host import LaunchCommand, Launcher, Monitor, RunInfo
from neox_core.contracts.interchange import CheckpointFormat
from neox_core.contracts.kernel import Kernel, KernelUser
from neox_core.contracts.model import Activation, Norm, Position, PositionShape, ScoreBias
from neox_core.contracts.objective import Datasets, Objective, SampleReader, Samples, SampleStream, Split
from neox_core.contracts.optim import AveragingOptimizer, LRSchedule, Optimizer, ScheduleShape

__all__ = [
    "Activation",
    "Architecture",
    "ArchitecturePlanner",
    "AveragingOptimizer",
    "CheckpointFormat",
    "Corpus",
    "Curriculum",
    "CurriculumShape",
    "DataBackend",
    "Datasets",
    "Engine",
    "EngineMaker",
    "EnginePlanner",
    "Kernel",
    "KernelUser",
    "LRSchedule",
    "LaunchCommand",
    "Launcher",
    "LayoutShape",
    "ModelFamily",
    "ModelSize",
    "Monitor",
    "Named",
    "NamedCorpus",
    "Norm",
    "Objective",
    "Optimizer",
    "Position",
    "PositionShape",
    "ResumableBackend",
    "ResumableWriter",
    "RunInfo",
    "SampleReader",
    "SampleStream",
    "Samples",
    "ScheduleShape",
    "ScoreBias",
    "Sharding",
    "SparseKernel",
    "SparseLayout",
    "SparseUse",
    "Split",
    "Storage",
    "StreamingBackend",
    "TokenSource",
    "TokenStream",
    "TokenWriter",
    "Tokenizer",
    "TokenizingBackend",
    "TrainableTokenizer",
    "Untold",
    "WeightRule",
]

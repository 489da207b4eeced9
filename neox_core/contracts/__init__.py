"""One Protocol per kind: what a component gets, what it returns, what it may raise.

Shapes are written [batch, seq, hidden]. `settings` is an instance of the attrs class that the Component names, or None.
The first line of each docstring shows how the core calls the Component's target.
"""

from typing import TYPE_CHECKING, Any

from neox_core import old_paths
from neox_core.contracts.architecture import Architecture, ArchitecturePlanner, ModelSize, Named, Untold
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
from neox_core.contracts.events import Ask, Callback, EvaluationRun, Evaluator
from neox_core.contracts.host import LaunchCommand, Launcher, Measured, Monitor, RunInfo
from neox_core.contracts.kernel import Kernel, KernelUser
from neox_core.contracts.objective import (
    Batch,
    Datasets,
    Loss,
    Objective,
    Outputs,
    Run,
    SampleReader,
    Samples,
    SampleStream,
    Scores,
    Split,
)
from neox_core.contracts.optim import (
    AveragingOptimizer,
    LRSchedule,
    ModalOptimizer,
    Optimizer,
    OptimizerRun,
    ScheduleShape,
)
from neox_core.contracts.store import Store

__all__ = [
    "Architecture",
    "ArchitecturePlanner",
    "Ask",
    "AveragingOptimizer",
    "Batch",
    "Callback",
    "Corpus",
    "Curriculum",
    "CurriculumShape",
    "DataBackend",
    "Datasets",
    "Engine",
    "EngineMaker",
    "EnginePlanner",
    "EvaluationRun",
    "Evaluator",
    "Kernel",
    "KernelUser",
    "LRSchedule",
    "LaunchCommand",
    "Launcher",
    "Loss",
    "Measured",
    "ModalOptimizer",
    "ModelSize",
    "Monitor",
    "Named",
    "NamedCorpus",
    "Objective",
    "Optimizer",
    "OptimizerRun",
    "Outputs",
    "ResumableBackend",
    "ResumableWriter",
    "Run",
    "RunInfo",
    "SampleReader",
    "SampleStream",
    "Samples",
    "ScheduleShape",
    "Scores",
    "Sharding",
    "Split",
    "Storage",
    "Store",
    "StreamingBackend",
    "TokenSource",
    "TokenStream",
    "TokenWriter",
    "Tokenizer",
    "TokenizingBackend",
    "TrainableTokenizer",
    "Untold",
]

if not TYPE_CHECKING:  # else every name would be there, of any type

    def __getattr__(name: str) -> Any:
        return old_paths.moved(__name__, name)

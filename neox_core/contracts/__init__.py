"""One Protocol per kind: what a component gets, what it returns, what it may raise.

Shapes are written [batch, seq, hidden]. `settings` is an instance of the attrs class that the Component names, or None.
The first line of each docstring shows how the core calls the Component's target.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from neox_core import old_paths

if TYPE_CHECKING:
    from neox_core.contracts.architecture import Architecture as Architecture
    from neox_core.contracts.architecture import ArchitecturePlanner as ArchitecturePlanner
    from neox_core.contracts.architecture import ModelSize as ModelSize
    from neox_core.contracts.architecture import Named as Named
    from neox_core.contracts.architecture import Untold as Untold
    from neox_core.contracts.curriculum import Curriculum as Curriculum
    from neox_core.contracts.curriculum import CurriculumShape as CurriculumShape
    from neox_core.contracts.data import DataBackend as DataBackend
    from neox_core.contracts.data import StreamingBackend as StreamingBackend
    from neox_core.contracts.data import Tokenizer as Tokenizer
    from neox_core.contracts.data import TokenizingBackend as TokenizingBackend
    from neox_core.contracts.data import TokenSource as TokenSource
    from neox_core.contracts.data import TokenStream as TokenStream
    from neox_core.contracts.data import TokenWriter as TokenWriter
    from neox_core.contracts.engine import Engine as Engine
    from neox_core.contracts.engine import EngineMaker as EngineMaker
    from neox_core.contracts.engine import EnginePlanner as EnginePlanner
    from neox_core.contracts.engine import Sharding as Sharding
    from neox_core.contracts.engine import Storage as Storage
    from neox_core.contracts.events import Ask as Ask
    from neox_core.contracts.events import Callback as Callback
    from neox_core.contracts.events import EvaluationRun as EvaluationRun
    from neox_core.contracts.events import Evaluator as Evaluator
    from neox_core.contracts.host import LaunchCommand as LaunchCommand
    from neox_core.contracts.host import Launcher as Launcher
    from neox_core.contracts.host import Measured as Measured
    from neox_core.contracts.host import Monitor as Monitor
    from neox_core.contracts.host import RunInfo as RunInfo
    from neox_core.contracts.objective import Batch as Batch
    from neox_core.contracts.objective import Datasets as Datasets
    from neox_core.contracts.objective import Loss as Loss
    from neox_core.contracts.objective import Objective as Objective
    from neox_core.contracts.objective import Outputs as Outputs
    from neox_core.contracts.objective import Run as Run
    from neox_core.contracts.objective import SampleReader as SampleReader
    from neox_core.contracts.objective import Samples as Samples
    from neox_core.contracts.objective import SampleStream as SampleStream
    from neox_core.contracts.objective import Scores as Scores
    from neox_core.contracts.objective import Split as Split
    from neox_core.contracts.optim import AveragingOptimizer as AveragingOptimizer
    from neox_core.contracts.optim import LRSchedule as LRSchedule
    from neox_core.contracts.optim import ModalOptimizer as ModalOptimizer
    from neox_core.contracts.optim import Optimizer as Optimizer
    from neox_core.contracts.optim import OptimizerRun as OptimizerRun
    from neox_core.contracts.optim import ScheduleShape as ScheduleShape
    from neox_core.contracts.store import Store as Store
    from neox_core.contracts.store import StoredCheckpoints as StoredCheckpoints
else:  # a command imports those that it needs

    def __getattr__(name: str) -> Any:
        for each in iter_modules(__path__, f"{__name__}."):
            if hasattr(module := import_module(each.name), name):
                return getattr(module, name)
        return old_paths.moved(__name__, name)

"""What is evaluated, in a run and after it."""

from __future__ import annotations

from attrs import field, frozen
from attrs import validators as v

from neox_core.api import setting


@frozen
class Evaluation:
    """Tasks of lm-evaluation-harness, and how many of their documents are asked.

    tasks: names of tasks, groups or tags. folder: of more tasks, in YAML. num_fewshot: examples before each question;
    None: what the task says. limit: documents of each task; None: all. batch_size: texts of a pass.
    """

    tasks: tuple[str, ...]
    folder: str | None = None
    num_fewshot: int | None = None
    limit: int | None = None
    batch_size: int = field(default=8, validator=v.ge(1))


@frozen
class LMEvalBlock:
    tasks: tuple[str, ...] = setting(
        (), help="Names of tasks, groups or tags of lm-evaluation-harness.", changes="output"
    )
    task_folder: str | None = setting(
        None, help="A folder of more tasks, in YAML, whose code is trusted as that of the harness is.", changes="output"
    )
    interval: int | None = setting(
        None,
        help="Evaluate at those validations whose step is a multiple of this; null: at each.",
        unit="steps",
        check=v.optional(v.ge(1)),
        changes="output",
    )
    num_fewshot: int | None = setting(
        None,
        help="Examples before each question; null: as many as the task says.",
        check=v.optional(v.ge(0)),
        changes="output",
    )
    limit: int | None = setting(
        None, help="Documents of each task that are asked; null: all.", check=v.optional(v.ge(1)), changes="output"
    )
    batch_size: int = setting(8, help="Texts of a pass over the model.", check=v.ge(1), changes="speed")

    def evaluation(self) -> Evaluation:
        """The evaluation that the block asks for."""
        return Evaluation(self.tasks, self.task_folder, self.num_fewshot, self.limit, self.batch_size)


@frozen
class LMEvalSettings:
    lm_eval: LMEvalBlock = setting(LMEvalBlock(), help="Block of the evaluator lm_eval.", changes="output")

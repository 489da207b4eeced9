"""The evaluator: one rank continues the prompts with the weights as they are, in any layout."""

from __future__ import annotations

import json
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from neox_core.data.batches import build_tokenizer
from neox_core.errors import ConfigError
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.terminal import echo

if TYPE_CHECKING:
    from neox_core.contracts.events import EvaluationRun
    from neox_samples.settings import SamplesSettings

FILE = "samples.jsonl"


class Samples:
    """Measures nothing: the first rank writes texts into the log and into `samples.jsonl` in the folder of the run."""

    measures = False

    def __init__(self, run: EvaluationRun, settings: SamplesSettings) -> None:
        self.run, self.block = run, settings.samples
        self.tokenizer: Any = build_tokenizer(run.plan)
        if self.tokenizer is None and self.block.prompts:
            raise ConfigError("samples has no tokenizer to read prompts with", hint="set tokenizer-type")
        self.writes = run.context.groups.world is None or dist.get_rank() == 0

    def evaluate(self, step: int) -> dict[str, float]:
        skipped = self.block.interval is not None and step % self.block.interval
        if skipped or not self.block.prompts:
            return {}
        with self.run.engine.at_hand():
            model = self._whole()
            if self.writes:
                self._write(step, model)
        return {}

    @cached_property
    def architecture(self) -> Any:
        """The run's architecture, which writes a sample."""
        return self.run.plan.architecture.load()[0](self.run.plan.model)

    def _write(self, step: int, model: Any) -> None:
        path = Path(self.run.plan.run_dir) / FILE
        texts = [self.architecture.sample(model, self.tokenizer, prompt) for prompt in self.block.prompts]
        lines = [{"step": step, "time": time.time(), "sample": text} for text in texts]
        echo(*(f"sample of step {step}:\n{text}\n" for text in texts), end="")
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write("".join(f"{json.dumps(line)}\n" for line in lines))
        except OSError as error:  # a run does not end because its samples cannot be written
            echo(f"samples cannot be written to {path}: {error.strerror or error}")

    def _whole(self) -> Any:
        """A model that the first rank can run alone: the trained one, or a copy in host memory. Collective."""
        engine, context = self.run.engine, self.run.context
        if not engine.partitioned and context.groups.model is None:
            return engine.model
        weights = {name: each.float().cpu().clone() for name, each in engine.whole_weights() if self.writes}
        if not self.writes:
            return None
        alone = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), context.seed)
        return self.architecture.build(self.run.vocab_size, alone, weights, eod=self.tokenizer.eod)

"""A small retriever, and documents for it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from attrs import evolve
from neox_retrieval.architecture import RetrieverArchitecture

from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.parallel.tensor import ALONE, TensorParallel
from neox_core.plan.resolve import Resolved, prepare_run
from neox_core.plan.runfile import RunPlan

VOCAB, QUERY, SEQ, HEAD = 64, 8, 40, 6
CLS, SEP, MASK, PAD = range(60, 64)
MODEL = """
num-layers: 2
hidden-size: 32
num-attention-heads: 4
seq-length: 40
max-position-embeddings: 40
norm: layernorm
pos-emb: learned
hidden-dropout: 0.0
attention-dropout: 0.0
padded-vocab-size: 64
cls-token-id: 60
sep-token-id: 61
mask-token-id: 62
pad-token-id: 63
init-method-std: 0.2
device: cpu
engine: plain
train_micro_batch_size_per_gpu: 4
optimizer: {type: Adam, params: {lr: 0.01, eps: 1.0e-5}}
lr-decay-style: constant
train-iters: 2
eval-iters: 0
num-workers: 0
"""
RETRIEVER = """
architecture: retriever
objective: inverse-cloze
ict-head-size: 6
query-length: 8
"""
BERT = """
architecture: bert
objective: masked-lm
sentence-pairs: none
"""


def resolved(folder: Path, *sets: str, config: str = RETRIEVER, start: bool = False) -> Resolved:
    """A run in `folder`, whose data need not be there."""
    file = folder / "config.yml"
    file.write_text(MODEL + config)
    data = [] if any("data-paths" in each for each in sets) else [f"data-path={folder / 'text'}", "split=50,50,0"]
    return prepare_run([file], [*data, *sets], start=start, folder=folder)


def built(plan: RunPlan, weights: Any = None, **groups: Any) -> Any:
    """The model of a plan, in float64 and training."""
    model: Any = plan.model
    return RetrieverArchitecture(model).build(VOCAB, context(**groups), weights)


def context(tensor: TensorParallel = ALONE, data: tuple[Any, int, int] = (None, 0, 1)) -> BuildContext:
    groups = Groups(None, *data, tensor, model=tensor.group)
    return BuildContext(torch.device("cpu"), torch.float64, groups, seed=5)


class Source:
    """A dataset whose sentence k has `sizes[k]` ids, which are k. documents: the sizes of the sentences of each."""

    def __init__(self, documents: list[list[int]]) -> None:
        self.sizes = np.array([size for each in documents for size in each], np.int32)
        self.bounds = np.concatenate([[0], np.cumsum([len(each) for each in documents], dtype=np.int64)])

    def read(self, sentence: int) -> Any:
        return np.full(self.sizes[sentence], sentence, np.int32)


def datasets(**sources: Source) -> Any:
    """Of a run, by the names of their files."""
    return SimpleNamespace(streamed=False, source=lambda prefix: sources[Path(prefix).name])


def of_split(plan: RunPlan, *shares: float) -> RunPlan:
    return evolve(plan, data=evolve(plan.data, split=shares))

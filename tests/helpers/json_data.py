"""A dataset in a JSON file, plans that read it, and what they read."""

import json
from pathlib import Path

import numpy as np
import torch
from attrs import evolve
from neox_author.testing.plans import example_plan
from neox_causal_lm.order import build_order

from neox_core.data.batches import build_batches
from neox_core.plan.runfile import BatchPlan, ComponentRef, DataPlan

SEQ = 6
VOCAB = 1000
READS: list[int] = []
CAUSAL_LM = ComponentRef("objective", "causal-lm", "neox-causal-lm", "0", "neox_causal_lm.objective:CausalLM")


class JsonSource:
    """Documents in a JSON file: a data backend that owes nothing to the real ones."""

    def __init__(self, prefix) -> None:
        self._documents = json.loads(prefix.read_text())
        self.sizes = np.array([len(document) for document in self._documents], dtype=np.int32)
        self.dtype = np.dtype(np.int64)

    def read(self, document, offset=0, length=None):
        READS.append(document)
        end = None if length is None else offset + length
        return np.array(self._documents[document][offset:end], dtype=np.int64)


class JsonBackend:
    def __init__(self, settings) -> None:
        self.open = JsonSource

    def files(self, prefix):
        return (prefix,)


def make_plan(prefix, *, layout=(2, 1, 1), train_iters=10, eval_iters=3, num_workers=0, split=(0.8, 0.2, 0.0)):
    """layout: micro-batch, accumulation, data-parallel ranks."""
    micro, accumulation, ranks = layout
    backend = ComponentRef("data backend", "json", "test", "0", "json_data:JsonBackend")
    plan = example_plan(Path("runs"))
    return evolve(
        plan,
        objective=CAUSAL_LM,
        model=evolve(plan.model, seq_length=SEQ, padded_vocab_size=VOCAB, make_vocab_size_divisible_by=128),
        batch=BatchPlan(micro, accumulation, ranks, micro * accumulation * ranks),
        data=DataPlan(None if prefix is None else str(prefix), split, backend, None, num_workers),
        train=evolve(plan.train, train_iters=train_iters, eval_interval=5, eval_iters=eval_iters, seed=1234),
    )


def read(plan, split="train", rank=0, first_step=0):
    return list(build_batches(plan, split, data_rank=rank, data_size=plan.batch.data_parallel, first_step=first_step))


def by_step(plan, first_step=0):
    """[steps, train_batch, seq + 1]: the samples of each step in global order, put together from all ranks."""
    ranks = [read(plan, rank=rank, first_step=first_step) for rank in range(plan.batch.data_parallel)]
    micro_batches = torch.cat([torch.cat(same_time) for same_time in zip(*ranks, strict=True)])
    return micro_batches.reshape(-1, plan.batch.train_batch, SEQ + 1)


def samples_by_hand(prefix, documents, num_samples):
    """Samples cut out of the stream that GPT-NeoX's index describes."""
    texts = json.loads(prefix.read_text())
    sizes = np.array([len(text) for text in texts])
    order = build_order(sizes, np.array(documents), SEQ, num_samples, 1234)
    stream = [token for document in order.documents for token in texts[document]]
    return torch.tensor([stream[s * SEQ : s * SEQ + SEQ + 1] for s in order.shuffle.astype(int)[:num_samples]])

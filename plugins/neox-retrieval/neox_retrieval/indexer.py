"""Embeds all blocks, over the ranks of a run that trains nothing: see `commands.index`."""

from __future__ import annotations

import os
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch.distributed as dist

from neox_core.errors import ConfigError
from neox_core.plan.runfile import DIGEST, ComponentRef, read_runfile
from neox_core.terminal import echo
from neox_retrieval.opened import open_run
from neox_retrieval.vectors import Unfinished, begin, read_vectors

if TYPE_CHECKING:
    from neox_core.contracts.host import RunInfo
    from neox_core.parallel.context import BuildContext
    from neox_retrieval.planner import RetrieverPlan


class Indexer:
    """The callback of a run of `neox retrieval index`. Each rank holds the whole model, and embeds other blocks."""

    where = "collective"

    def __init__(self, run: RunInfo, context: BuildContext, settings: None) -> None:
        self._plan = read_runfile(run.run_dir / "run.json", os.environ.get(DIGEST))
        self._context = context

    def start(self, step: int) -> None:
        model = cast("RetrieverPlan", self._plan.model)
        if model.ict_load is None or model.index.path is None:
            raise ConfigError("the run names no retriever or no block-data-path", hint="use `neox retrieval index`")
        folder, world = Path(model.index.path), self._context.groups.world
        rank, ranks = (dist.get_rank(world), dist.get_world_size(world)) if world is not None else (0, 1)
        opened = open_run(self._plan, Path(model.ict_load), self._context.device)
        finished = [begin(folder, opened.facts) if rank == 0 else None]
        if ranks > 1:
            dist.broadcast_object_list(finished, group=world, group_src=0)
        total = opened.facts.blocks
        if not finished[0]:
            self._embed(opened, Unfinished(folder, opened.facts), rank, ranks)
        elif rank == 0:
            echo(f"{folder}: the vectors of these {total:,} blocks are there")

    def _embed(self, opened: Any, vectors: Unfinished, rank: int, ranks: int) -> None:
        index = cast("RetrieverPlan", self._plan.model).index
        pending = vectors.pending()
        if rank == 0 and len(pending) < opened.facts.blocks:
            echo(f"continues: {opened.facts.blocks - len(pending):,} of {opened.facts.blocks:,} blocks are embedded")
        self._wait()  # or a rank that is quicker would write before another has looked
        starts, began = range(rank * index.batch, len(pending), ranks * index.batch), time.monotonic()
        for number, first in enumerate(starts, 1):
            some = pending[first : first + index.batch]
            vectors.write(some, opened.embed_blocks(some.tolist()))
            if rank == 0 and number % index.log_interval == 0:
                done = min(len(pending), number * ranks * index.batch)
                rate = done / (time.monotonic() - began)
                blocks = f"about {done:,} of {len(pending):,} blocks, {rate:,.0f} a second"
                echo(f"batch {number:,} of {len(starts):,}: {blocks}")
        self._wait()
        if rank == 0:
            vectors.finish()
            read_vectors(vectors.folder, opened.facts)
            echo(f"{vectors.folder}: {opened.facts.blocks:,} blocks as vectors of {opened.facts.size}")
        vectors.close()
        self._wait()

    def _wait(self) -> None:
        if self._context.groups.world is not None:
            dist.barrier(self._context.groups.world)


INDEXER = ComponentRef(
    "callback", "block-index", "neox-retrieval", version("neox-retrieval"), "neox_retrieval.indexer:Indexer"
)
"""The callback, which no config names: the command puts it into the plan."""

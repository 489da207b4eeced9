"""The planner of a retriever: an encoder's plan twice, with heads."""

from collections.abc import Mapping
from math import prod
from typing import Any

from attrs import evolve, field, fields, frozen
from neox_bert.api import BertPlan, BertPlanner
from neox_gpt.api import DecoderSize, GPTPlan

from neox_core.config.schema.structure import Config
from neox_core.contracts.architecture import ModelSize, Shapes, Untold
from neox_core.plan.runfile import RunPlan
from neox_core.plan.source import FIRST, START, of
from neox_retrieval.section import IndexSection, RetrieverSection

TOWERS = ("query", "block")
"""The first parts of the names of the encoders' parameters."""


@frozen
class IndexPlan:
    """What the commands of `neox retrieval` read. path: the folder of the vectors; None: there is none."""

    path: str | None = field(default=None, metadata=of("block_data_path", apart=START))
    batch: int = field(default=128, metadata=of("indexer_batch_size", apart=START))
    log_interval: int = field(default=1000, metadata=of("indexer_log_interval", apart=START))
    gpu: bool = field(default=False, metadata=of("faiss_use_gpu", apart=START))


@frozen(kw_only=True)
class RetrieverPlan(BertPlan):
    """A retriever. head_size: width of its vectors. query_length: the first tokens of a sample, see `model.Retriever`.

    titles: prefix of the dataset of titles. bert_load, ict_load: folders of the runs whose weights it starts with.
    """

    head_size: int = field(metadata=of("ict_head_size"))
    query_length: int
    share_towers: bool
    titles: str | None = field(default=None, metadata=of("titles_data_path"))
    bert_load: str | None = field(default=None, metadata=of("bert_load", apart=FIRST))
    ict_load: str | None = field(default=None, metadata=of("ict_load", apart=FIRST))
    index: IndexPlan = field(default=IndexPlan(), metadata=of("block_data_path", apart=START))

    @property
    def block_length(self) -> int:
        """The tokens of a sample that are the block's."""
        return self.seq_length - self.query_length

    @property
    def towers(self) -> tuple[str, ...]:
        """The first part of the names of each encoder's parameters."""
        return TOWERS[:1] if self.share_towers else TOWERS

    def in_words(self) -> str:
        number = "one encoder" if self.share_towers else "two encoders"
        lengths = f"queries of {self.query_length} tokens, blocks of {self.block_length}"
        return f"{number}, each {super().in_words()}; {lengths}, vectors of {self.head_size}"

    @classmethod
    def shaping(cls, model: Mapping[str, Any]) -> dict[str, Any]:
        own = {"ict-head-size": model.get("head_size"), "share-towers": model.get("share_towers")}
        return {**super().shaping(model), **own}

    def make_model(self, *parts: Any, **more: Any) -> Any:
        """A `model.Retriever`, of two encoders where other plans have one."""
        from neox_retrieval.model import Retriever  # imports torch

        own = self._own()
        del own["pairs"]
        given: dict[str, Any] = {"head_size": self.head_size, "query_length": self.query_length}
        return Retriever(*parts, **more, **own, **given, shared=self.share_towers)


class RetrieverPlanner(BertPlanner):
    """The planner of the retriever."""

    plan_class: type[GPTPlan] = RetrieverPlan

    def plan(self, config: Config) -> RetrieverPlan:
        encoder, own, index = super().plan(config), config.section(RetrieverSection), config.section(IndexSection)
        return RetrieverPlan(
            **{each.name: getattr(encoder, each.name) for each in fields(BertPlan)},
            head_size=own.ict_head_size,
            query_length=own.query_length,
            share_towers=own.share_towers,
            titles=own.titles_data_path,
            bert_load=own.bert_load,
            ict_load=own.ict_load,
            index=IndexPlan(
                index.block_data_path, index.indexer_batch_size, index.indexer_log_interval, index.faiss_use_gpu
            ),
        )

    def size(self, config: Config, plan: Any) -> ModelSize | Untold:
        size = self.trunk_size(config, plan)
        if not isinstance(size, DecoderSize):
            return size
        split = {"embedding.weight": 0, **size.split}
        heads: dict[str, tuple[int, ...]] = {}
        for name in TOWERS:
            heads |= {f"{name}_head.weight": (plan.head_size, plan.hidden_size), f"{name}_head.bias": (plan.head_size,)}
        shapes = {f"{tower}.{name}": shape for tower in plan.towers for name, shape in size.shapes.items()}
        cut = {f"{tower}.{name}": dim for tower in plan.towers for name, dim in split.items()}
        return evolve(size, shapes={**shapes, **heads}, split=cut)

    def on_fullest_rank(self, plan: RunPlan, size: ModelSize) -> Shapes:
        """Every rank has a part of each parameter that is split, and all of the others."""
        ranks, split = plan.cluster.tensor_parallel, getattr(size, "split", {})
        held = {}
        for name, shape in size.shapes.items():
            dim = split.get(name)
            cut = (-(-each // ranks) if at == dim else each for at, each in enumerate(shape))
            held[name] = tuple(cut)
        return held

    def activation_bytes(self, plan: RunPlan, size: ModelSize) -> int:
        """Each token goes through one encoder; beside that the vectors of the batch and their products are kept."""
        model: Any = plan.model
        rows = plan.batch.micro_batch
        vectors = 4 * prod((rows, model.head_size, 2 + plan.batch.data_parallel))
        return super().activation_bytes(plan, size) + vectors + 8 * rows * rows * plan.batch.data_parallel


PLANNER = RetrieverPlanner()

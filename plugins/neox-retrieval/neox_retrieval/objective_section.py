"""The keys of the objective of a retriever."""

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting
from neox_core.config.schema.checks import distinct


@frozen
class InverseClozeSettings:
    """Samples of a sentence and of the block that it was taken from."""

    query_in_block_prob: float = setting(
        0.1,
        help="Share of the samples whose block keeps the sentence. A block of one sentence always keeps it.",
        unit="fraction",
        check=v.and_(v.ge(0), v.le(1)),
        origin="megatron",
    )
    use_one_sent_docs: bool = setting(
        False,
        help="Train on documents of one sentence too; without it also on no block of one sentence, unless "
        "query-in-block-prob is 1. The index has all blocks.",
        origin="megatron",
    )
    report_topk_accuracies: tuple[int, ...] = setting(
        (),
        help="The k of each top-k accuracy in the log: how often the block of a query is among the first k of a batch.",
        check=v.and_(v.deep_iterable(v.gt(0)), distinct),
        changes="output",
        origin="megatron",
    )

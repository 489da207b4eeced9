"""The keys of a retriever, and of the index."""

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting
from neox_core.config.schema.checks import not_empty


@frozen
class RetrieverSection:
    """What a retriever has beside the keys of an encoder."""

    ict_head_size: int = setting(
        help="Width of the vectors of queries and blocks.", unit="elements", check=v.gt(0), origin="megatron"
    )
    query_length: int = setting(
        64,
        help="Tokens of a sample that are the query's; the others, up to seq-length, are the block's.",
        unit="tokens",
        check=v.ge(3),
    )
    share_towers: bool = setting(False, help="Embed queries and blocks with the same encoder; their heads differ.")
    bert_load: str | None = setting(
        None, help="Folder of a BERT's run, with whose weights both encoders start.", check=not_empty, origin="megatron"
    )
    ict_load: str | None = setting(
        None,
        help="Folder of a retriever's run, with whose weights the encoders and their heads start.",
        check=not_empty,
        origin="megatron",
    )
    titles_data_path: str | None = setting(
        None,
        help="Prefix of a dataset with one title for each document, which each block of the document starts with.",
        check=not_empty,
        origin="megatron",
    )


@frozen
class IndexSection:
    """What the commands of `neox retrieval` read; training does not use it."""

    block_data_path: str | None = setting(
        None,
        help="Folder of the vectors of all blocks, which `neox retrieval index` writes.",
        check=not_empty,
        changes="output",
        origin="megatron",
    )
    indexer_batch_size: int = setting(
        128,
        help="Blocks that a rank of `neox retrieval index` embeds at once.",
        unit="blocks",
        check=v.gt(0),
        changes="speed",
        origin="megatron",
    )
    indexer_log_interval: int = setting(
        1000,
        help="Batches of rank 0 between two lines of progress of `neox retrieval index`.",
        unit="batches",
        check=v.gt(0),
        changes="output",
        origin="megatron",
    )
    faiss_use_gpu: bool = setting(
        False,
        help="Search with FAISS on a GPU; needs a FAISS that was built for one.",
        changes="speed",
        origin="megatron",
    )

"""Rules of block-sparse attention; those of a layout's own settings come with the layout."""

from collections.abc import Iterator

from neox_core.api import Problem
from neox_core.config.schema.sections.data import DataSection
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import rule
from neox_gpt.config.attention_config import SPARSE, layouts_used, mode_of
from neox_gpt.config.mixers import others_chosen
from neox_gpt.config.per_layer import check_length
from neox_gpt.config.sections.attention import AttentionSection
from neox_gpt.config.sections.model import ModelSection


@rule("attention_config", "sparsity")
def attention_said_once(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Either sparsity or attention-config selects the sparse layers."""
    attention = config.section(AttentionSection)
    if attention.attention_config is not None and attention.sparsity != "none":
        yield config.problem("contradicts sparsity", "attention-config", "keep one of the two")


@rule("attention_config", "num_layers")
def attention_fits_layers(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """attention-config names as many mixers or layouts as there are layers."""
    attention_config = config.section(AttentionSection).attention_config
    if attention_config is None:
        return
    try:
        check_length(config.section(ModelSection).num_layers, attention_config, "attention")
    except ValueError as error:
        yield config.problem(str(error), "attention-config")


@rule("sparse_attention", "sparsity", "attention_config")
def sparse_block_used(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Settings of sparse attention need a layer that has it."""
    attention = config.section(AttentionSection)
    if not attention.sparse_attention:
        return
    used = layouts_used(attention.sparsity, SPARSE, attention.attention_config, others_chosen(config))
    if not used:
        yield config.problem("does nothing: no layer is sparse", "sparse_attention", "set sparsity: all")
    elif SPARSE not in used and "mode" in attention.sparse_attention:
        mode = mode_of(attention.sparse_attention)
        yield config.problem(
            f"does nothing: attention-config does not name {SPARSE}",
            "sparse_attention.mode",
            f"remove it, or write {SPARSE} where {mode} is meant",
        )


@rule("sparse_attention.block", "seq_length")
def blocks_divide_sequence(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A sequence is a whole number of blocks."""
    length = config.section(DataSection).seq_length
    for layout in config.components("sparse layout"):
        block = getattr(layout.settings, "block", None)
        if block is None:
            hint = f"tell the author of {layout.entry.plugin.id}: contracts.SparseLayout asks for it"
            message = f"the settings of {layout.entry.qualified} have no `block`"
            yield config.problem(message, "sparse_attention.mode", hint)
        elif length % block:
            yield config.problem(f"{block} does not divide seq-length {length}", "sparse_attention.block")
            return

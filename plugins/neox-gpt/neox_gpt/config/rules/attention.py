"""Rules of block-sparse attention; those of a layout's own settings come with the layout."""

from collections.abc import Iterator

from neox_core.api import Problem
from neox_core.config.schema.sections.data import DataSection
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import rule
from neox_gpt.config.attention_config import NOPE, SLIDING, SPARSE, layouts_used, mode_of, softmax_names, windows
from neox_gpt.config.mixers import others_chosen
from neox_gpt.config.per_layer import check_length
from neox_gpt.config.sections.attention import AttentionSection
from neox_gpt.config.sections.model import ModelSection

WIDTH = "set sliding-window-width"
AT_THE_EMBEDDING = ("learned", "sinusoidal", "none")
"""Positions that queries, keys and scores have no part in."""


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


@rule("sparsity", "num_layers")
def every_second_layer_is_there(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """`sparsity: interspersed` begins with the second layer."""
    if config.section(AttentionSection).sparsity == "interspersed" and config.section(ModelSection).num_layers == 1:
        message = "does nothing: the first layer is dense, and there is no other"
        yield config.problem(message, "sparsity", "set sparsity: all, or none")


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


def _names(config: Config) -> tuple[str | None, ...]:
    attention = config.section(AttentionSection)
    try:
        return softmax_names(config.section(ModelSection).num_layers, attention.attention_config, attention.sparsity)
    except ValueError:  # another rule names the number of layers
        return ()


@rule("sliding_window_width", "attention_config", "sparsity")
def windows_have_a_width(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Layers with a window and its width come together."""
    names, width = _names(config), config.section(AttentionSection).sliding_window_width
    if SLIDING in names and width is None:
        yield config.problem(f"calls layers {SLIDING}, which needs their window", "attention-config", WIDTH)
    if names and width is not None and windows(names, width) is None:
        message = "does nothing: no layer has softmax attention without a layout"
        yield config.problem(message, "sliding_window_width", "remove it")


@rule("sliding_window_width", "seq_length")
def windows_are_shorter_than_samples(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A window of a whole sample hides nothing in training; it may in a longer text."""
    width, seq = config.section(AttentionSection).sliding_window_width, config.section(DataSection).seq_length
    if width is not None and width >= seq - 1:
        message = f"hides nothing from the tokens of a sample, of which there are {seq}"
        yield config.problem(message, "sliding_window_width", severity="note")


@rule("attention_config", "num_unique_layers")
def shared_blocks_are_alike(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Layers that share a block have the same window, or none, and the same positions."""
    model, names = config.section(ModelSection), _names(config)
    if model.num_unique_layers not in (None, model.num_layers) and {SLIDING, NOPE} & set(names) and len(set(names)) > 1:
        yield config.problem("excludes num-unique-layers", "attention-config", "name one attention for all layers")


@rule("attention_config", "pos_emb")
def nope_leaves_something_out(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A layer without positions leaves out those that act on queries, keys and scores."""
    (position,) = config.components("position")
    if NOPE in _names(config) and position.entry.component.name in AT_THE_EMBEDDING:
        message = f"calls layers {NOPE}, and pos-emb {position.entry.component.name} acts on no layer"
        yield config.problem(message, "attention-config", "such as pos-emb: rotary")


@rule("use_qk_layernorm", "qk_norm", "num_kv_heads")
def queries_and_keys_have_one_norm(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """GPT-NeoX's norm has a weight for each element of a head of queries and its keys."""
    attention, model = config.section(AttentionSection), config.section(ModelSection)
    if not attention.use_qk_layernorm:
        return
    if attention.qk_norm is not None:
        yield config.problem("contradicts use-qk-layernorm", "qk_norm", "keep one of the two")
    if model.num_kv_heads not in (None, model.num_attention_heads):
        message = f"queries have {model.num_attention_heads} heads and keys {model.num_kv_heads}, and one norm for both"
        yield config.problem(message, "use_qk_layernorm", "set qk-norm: all, which has a norm for each")

"""Rules of the model: its shape and its parts."""

from collections.abc import Iterator

from neox_core.config.problem import Problem
from neox_core.config.sections.host import DataSection
from neox_core.config.sections.model import ModelSection
from neox_core.config.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import Rule, rule


@rule("hidden_size", "num_attention_heads")
def heads_divide_hidden(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Every head has the same whole width."""
    model = config.section(ModelSection)
    if model.hidden_size % model.num_attention_heads:
        yield config.problem(
            f"{model.hidden_size} cannot be divided by num-attention-heads {model.num_attention_heads}", "hidden-size"
        )


@rule("gpt_j_residual", "apply_residual_connection_post_layernorm")
def one_residual(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The parallel residual has one norm, so there is none to take the residual after."""
    model = config.section(ModelSection)
    if model.gpt_j_residual and model.apply_residual_connection_post_layernorm:
        yield config.problem(
            "excludes gpt-j-residual",
            "apply-residual-connection-post-layernorm",
            "it has a norm for each sublayer",
        )


@rule("seq_length", "max_position_embeddings")
def sequence_fits_positions(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A sample is no longer than the positions of the model."""
    model, data = config.section(ModelSection), config.section(DataSection)
    if data.seq_length > model.max_position_embeddings:
        yield config.problem(
            f"{data.seq_length} is more than max-position-embeddings {model.max_position_embeddings}", "seq-length"
        )


@rule("padded_vocab_size", "make_vocab_size_divisible_by")
def padding_agrees(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A vocabulary given by its size keeps to the multiple that is asked for."""
    data = config.section(DataSection)
    rows, multiple = data.padded_vocab_size, data.make_vocab_size_divisible_by
    if rows is not None and config.is_set("make-vocab-size-divisible-by") and rows % multiple:
        yield config.problem(f"{rows} is no multiple of make-vocab-size-divisible-by {multiple}", "padded-vocab-size")


RULES: tuple[Rule, ...] = (
    heads_divide_hidden,
    one_residual,
    sequence_fits_positions,
    padding_agrees,
)

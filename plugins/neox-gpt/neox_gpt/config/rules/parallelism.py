"""Rules of how a decoder is split over ranks."""

from collections.abc import Iterator

from neox_core.api import Problem
from neox_core.config.schema.sections.data import DataSection
from neox_core.config.schema.sections.parallelism import ParallelismSection
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import rule
from neox_gpt.config.sections.model import ModelSection


@rule(
    "model_parallel_size",
    "hidden_size",
    "num_attention_heads",
    "num_kv_heads",
    "intermediate_size",
    "padded_vocab_size",
    "make_vocab_size_divisible_by",
)
def widths_divide(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Ranks that share layers have equal parts of every width that is split."""
    tensor, model = config.section(ParallelismSection).model_parallel_size, config.section(ModelSection)
    data = config.section(DataSection)
    rows = "padded_vocab_size" if data.padded_vocab_size is not None else "make_vocab_size_divisible_by"
    widths = {
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_kv_heads": model.num_kv_heads,
        "intermediate_size": model.intermediate_size,
        rows: data.padded_vocab_size or data.make_vocab_size_divisible_by,
    }
    for key, width in widths.items():
        if width is not None and width % tensor:
            hint = f"use {width * tensor}, to which GPT-NeoX pads" if key == "make_vocab_size_divisible_by" else ""
            yield config.problem(f"{width} cannot be divided by model-parallel-size {tensor}", key, hint)


@rule("pipe_parallel_size", "num_layers")
def stages_have_layers(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Every stage of a pipeline has at least one layer."""
    stages, layers = config.section(ParallelismSection).pipe_parallel_size, config.section(ModelSection).num_layers
    if stages > layers:
        yield config.problem(f"{stages} stages cannot share {layers} layers", "pipe_parallel_size")

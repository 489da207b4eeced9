"""The block `compression_training`: one block for each technique."""

from __future__ import annotations

from typing import Any

from attrs import frozen
from attrs import validators as v

from neox_compression.config.sections.fields import block, enabled
from neox_compression.config.sections.pruning import ChannelPruning, HeadPruning, RowPruning, SparsePruning
from neox_compression.config.sections.quantization import ActivationQuantization, WeightQuantization
from neox_core.api import setting


@frozen
class LayerReduction:
    """A model whose layers are some of those of another one."""

    enabled: bool = enabled("Start with layers of a trained model that has more of them, the teacher.")
    teacher: str | None = setting(
        None,
        help="Folder of the teacher's checkpoint, which a run has saved or `neox checkpoint import-hf` has made.",
        file=True,
    )
    keep_number_layer: int | None = setting(
        None, help="Layers of this model: num-layers.", unit="layers", check=v.optional(v.gt(0)), origin="deepspeed"
    )
    module_name_prefix: str = setting(
        "layers", help="Name of the layers in the model; the only value is layers.", origin="deepspeed"
    )
    teacher_layer: tuple[int, ...] = setting(
        (),
        help="For each layer of this model the layer of the teacher, from 0, whose weights it starts with.",
        check=v.deep_iterable(v.ge(0)),
        origin="deepspeed",
    )
    other_module_name: tuple[str, ...] = setting(
        (),
        help="Further modules that start with the teacher's weights: embedding, position, final_norm, head, or a layer "
        "such as layers.0.",
        origin="deepspeed",
    )


@frozen
class CompressionBlock:
    """Techniques that shrink a model while it trains."""

    layer_reduction: LayerReduction = block(LayerReduction(), "Block: start with some layers of a trained model.")
    weight_quantization: WeightQuantization = block(WeightQuantization(), "Block: weights are rounded to few bits.")
    activation_quantization: ActivationQuantization = block(
        ActivationQuantization(), "Block: activations are rounded to few bits."
    )
    sparse_pruning: SparsePruning = block(SparsePruning(), "Block: single weights are set to zero.")
    row_pruning: RowPruning = block(RowPruning(), "Block: rows of weights are set to zero.")
    head_pruning: HeadPruning = block(HeadPruning(), "Block: attention heads are set to zero.")
    channel_pruning: ChannelPruning = block(ChannelPruning(), "Block: channels of convolutions; not for decoders.")


@frozen
class CompressionSettings:
    compression_training: CompressionBlock = block(
        CompressionBlock(), "Block of the techniques that shrink a model while it trains."
    )

    @property
    def enabled(self) -> bool:
        """Whether the config asks for it."""
        block = self.compression_training
        return block.layer_reduction.enabled or any(each.shared_parameters.enabled for _, each in techniques(block))


def techniques(block: CompressionBlock) -> list[tuple[str, Any]]:
    """The block of each technique that acts on layers, by name."""
    names = [each.name for each in CompressionBlock.__attrs_attrs__]
    return [(name, getattr(block, name)) for name in names if name != "layer_reduction"]

"""A valid config to the plan of its decoder."""

from collections.abc import Sequence

from neox_core.config.schema.sections.data import DataSection
from neox_core.config.schema.structure import Chosen, Config, SectionInvalidError
from neox_core.contracts.architecture import Shapes, Untold
from neox_core.plan.assemble import reference
from neox_core.plan.planners import engine_planner, sharding
from neox_core.plan.runfile import RecomputePlan
from neox_gpt.change_contracts import LinearShape
from neox_gpt.config.attention_config import (
    NOPE,
    layer_layouts,
    layouts_used,
    mixer_of_layer,
    mode_of,
    softmax_names,
    windows,
)
from neox_gpt.config.feed_forwards import feed_forward_of_layer
from neox_gpt.config.mixers import others_chosen
from neox_gpt.config.per_layer import check_length
from neox_gpt.config.plan import REGULAR, SOFTMAX_ATTENTION, GPTPlan, MixerFacts
from neox_gpt.config.sections.activation_checkpointing import ActivationCheckpointingSection, option, segments
from neox_gpt.config.sections.attention import AttentionSection
from neox_gpt.config.sections.model import DropoutSection, ModelSection
from neox_gpt.config.size import feed_forward_sizes, is_gated, linears, mixer_sizes, model_size, output_bias
from neox_gpt.contracts import FeedForwardSize, MixerSize


def linear_layers(config: Config) -> tuple[LinearShape, ...] | None:
    """The linear layers of the blocks of a valid config's model, which model changes are asked about; None where a part
    of the model does not tell its size.
    """
    size = model_size(config, gpt_plan(config), changed=False)
    return None if isinstance(size, Untold) else tuple(linears(size.shapes, size.split))


def weight_type(config: Config) -> str:
    """The type of the weights that a valid config trains: fp32, bf16 or fp16."""
    return engine_planner(config).precision(config).dtype


def gpt_plan(config: Config) -> GPTPlan:
    """The plan of a valid config. Raises SectionInvalidError where a list does not fit the layers, as a rule says."""
    model, rest = config.section(ModelSection), config.section(DropoutSection)
    data, attention = config.section(DataSection), config.section(AttentionSection)
    for listed in (model.mlp_type, attention.attention_config):
        if isinstance(listed, Sequence) and not isinstance(listed, str):
            try:
                check_length(model.num_layers, listed, "layer")
            except ValueError as error:
                raise SectionInvalidError(str(error)) from error
    layouts = config.components("sparse layout")
    (norm,), (activation,), (position,) = (config.components(kind) for kind in ("norm", "activation", "position"))
    fed = tuple(map(reference, config.components("feed forward")))
    mixers = tuple(map(reference, config.components("mixer")))
    names = softmax_names(model.num_layers, attention.attention_config, attention.sparsity)
    regular = [each.identity for each in fed] == [REGULAR.identity]
    softmax = [each.identity for each in mixers] == [SOFTMAX_ATTENTION.identity]
    return GPTPlan(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.num_attention_heads,
        intermediate_size=model.intermediate_size or 4 * model.hidden_size,
        seq_length=data.seq_length,
        max_position_embeddings=model.max_position_embeddings,
        norm=reference(norm),
        activation=reference(activation),
        position=reference(position),
        padded_vocab_size=data.padded_vocab_size,
        make_vocab_size_divisible_by=data.make_vocab_size_divisible_by,
        tie_embeddings=not model.no_weight_tying,
        parallel_residual=model.gpt_j_residual,
        residual_post_norm=model.apply_residual_connection_post_layernorm,
        hidden_dropout=rest.hidden_dropout,
        attention_dropout=rest.attention_dropout,
        init_method=model.init_method,
        output_init_method=model.output_layer_init_method,
        init_std=model.init_method_std,
        attention_softmax_in_fp32=attention.attention_softmax_in_fp32 or model.apply_query_key_layer_scaling,
        num_kv_heads=model.num_kv_heads,
        num_unique_layers=model.num_unique_layers,
        param_sharing_style=model.param_sharing_style,
        shared_norm=model.gpt_j_tied,
        attention_bias=model.use_bias_in_attn_linear,
        mlp_bias=model.use_bias_in_mlp,
        query_key_layer_scaling=model.apply_query_key_layer_scaling,
        reset_position_ids=model.reset_position_ids,
        reset_attention_mask=model.reset_attention_mask,
        eod_mask_loss=model.eod_mask_loss,
        compile=model.compile,
        sparse_gradients=sharding(config).sparse_gradients,
        recompute=_recompute(config.section(ActivationCheckpointingSection), model.num_layers),
        layouts=tuple(map(reference, layouts)),
        mixers=None if softmax else mixers,
        mixer_facts=None if softmax else _mixer_facts(config),
        mixer_of_layer=mixer_of_layer(model.num_layers, attention.attention_config, others_chosen(config)),
        feed_forwards=None if regular else fed,
        feed_forward_shapes=None if regular else _feed_forward_shapes(config),
        changes=tuple(map(reference, config.components("model change"))) or None,
        feed_forward_of_layer=feed_forward_of_layer(model.num_layers, model.mlp_type),
        layout_of_layer=_layout_of_layer(config, layouts, model.num_layers),
        head_dim=model.head_dim,
        qk_norm="shared" if attention.use_qk_layernorm else attention.qk_norm,
        windows=windows(names, attention.sliding_window_width),
        norm_place=None if model.norm_place == "before" else model.norm_place,
        attention_output_bias=output_bias(model),
        attention_multiplier=attention.attention_multiplier,
        attention_softcap=attention.attention_softcap,
        embedding_multiplier=model.embedding_multiplier,
        logit_softcap=model.logit_softcap,
        head_bias=model.use_bias_in_head or None,
        positions_of_layer=tuple(name != NOPE for name in names) if NOPE in names else None,
    )


def _mixer_facts(config: Config) -> tuple[MixerFacts, ...]:
    sizes = (each for each in mixer_sizes(config) if isinstance(each, MixerSize))  # a rule refuses others
    return tuple(
        MixerFacts(each.flops, each.decodes, each.needs_positions, _plain(each.shapes), tuple(each.norms))
        for each in sizes
    )


def _feed_forward_shapes(config: Config) -> tuple[dict[str, tuple[int, ...]] | None, ...]:
    gated = is_gated(config)
    if isinstance(gated, Untold):
        return tuple(None for _ in config.components("feed forward"))
    sizes = feed_forward_sizes(config, gated=gated)
    return tuple(_plain(each.shapes) if isinstance(each, FeedForwardSize) else None for each in sizes)


def _plain(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    return {name: tuple(shape) for name, shape in shapes.items()}


def _layout_of_layer(config: Config, layouts: Sequence[Chosen], num_layers: int) -> tuple[int | None, ...]:
    attention = config.section(AttentionSection)
    sparsity, pattern, mode = attention.sparsity, attention.attention_config, mode_of(attention.sparse_attention)
    if not layouts:
        return ()
    others = others_chosen(config)
    place = {name: index for index, name in enumerate(layouts_used(sparsity, mode, pattern, others))}
    names = layer_layouts(num_layers, sparsity, mode, pattern, others)
    return tuple(None if name is None else place[name] for name in names)


def _recompute(section: ActivationCheckpointingSection, num_layers: int) -> RecomputePlan | None:
    if not section.checkpoint_activations:
        return None
    if not section.deepspeed_activation_checkpointing:
        return RecomputePlan(section.checkpoint_num_layers, section.distribute_checkpointed_activations)
    return RecomputePlan(
        layers=section.checkpoint_num_layers,
        deepspeed=True,
        partition=option(section, "partition_activations"),
        contiguous=option(section, "contiguous_checkpointing"),
        num_checkpoints=segments(section, num_layers),
        in_cpu=option(section, "checkpoint_in_cpu"),
        synchronize=option(section, "synchronize_each_layer"),
        profile=option(section, "profile_backward"),
    )

"""Rules of the model: its shape and its components."""

from collections.abc import Iterator

from neox_core.api import Problem
from neox_core.config.schema.sections.data import DataSection
from neox_core.config.schema.sections.training import TrainingSection
from neox_core.config.schema.structure import Config
from neox_core.contracts.architecture import Untold
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import rule
from neox_gpt.config.sections.attention import AttentionSection
from neox_gpt.config.sections.fusion import FusionSection
from neox_gpt.config.sections.model import MEASURE_COMPILE, TIMED_INTERVALS, ModelSection
from neox_gpt.config.told import tell


@rule("hidden_size", "num_attention_heads", "head_dim")
def heads_divide_hidden(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Every head has the same whole width, unless head-dim gives it."""
    model = config.section(ModelSection)
    if model.head_dim is None and model.hidden_size % model.num_attention_heads:
        message = f"{model.hidden_size} cannot be divided by num-attention-heads {model.num_attention_heads}"
        yield config.problem(message, "hidden-size", "or set head-dim")


@rule("gpt_j_residual", "apply_residual_connection_post_layernorm")
def one_residual(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The parallel residual has a norm for each sublayer, so the residual cannot be taken after the norm."""
    model = config.section(ModelSection)
    if model.gpt_j_residual and model.apply_residual_connection_post_layernorm:
        yield config.problem(
            "excludes gpt-j-residual",
            "apply-residual-connection-post-layernorm",
            "it has a norm for each sublayer",
        )


@rule("norm_place", "gpt_j_residual", "apply_residual_connection_post_layernorm")
def norms_after_sublayers(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A norm after a sublayer is for the serial form."""
    model = config.section(ModelSection)
    for key in ("gpt_j_residual", "apply_residual_connection_post_layernorm"):
        if model.norm_place != "before" and getattr(model, key):
            yield config.problem(f"{model.norm_place} excludes {key.replace('_', '-')}", "norm_place")


@rule("callbacks", "compile")
def what_is_measured_is_open(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The callback that chooses whether to compile needs that choice."""
    named = any(each.entry.component.name == MEASURE_COMPILE for each in config.components("callback"))
    if named and config.section(ModelSection).compile != "auto":
        yield config.problem(f"{MEASURE_COMPILE} belongs to compile: auto", "callbacks", "write that in its place")


@rule("compile", "train_iters", "log_interval")
def steps_to_measure_in(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A run is long enough for `compile: auto` to choose, and to gain from its choice."""
    training, intervals = config.section(TrainingSection), 2 * (1 + TIMED_INTERVALS)
    interval, steps = training.log_interval, training.train_iters
    if config.section(ModelSection).compile == "auto" and steps <= intervals * interval:
        message = f"auto needs {intervals} log intervals of {interval} steps: the run has {steps} steps"
        yield config.problem(message, "compile", "lower log-interval, or set compile: false", "warning")


@rule("use_bias_in_head", "no_weight_tying")
def a_tied_head_has_no_bias(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The output projection has a bias where it is a layer of its own."""
    model = config.section(ModelSection)
    if model.use_bias_in_head and not model.no_weight_tying:
        yield config.problem("needs no-weight-tying: true", "use_bias_in_head")


@rule("intermediate_size", "hidden_size")
def width_is_no_sum(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """`intermediate-size` is the width after the gate; GPT-NeoX takes a third of it where the activation has one."""
    model = config.section(ModelSection)
    width = model.intermediate_size
    if width is not None and width > 8 * model.hidden_size:
        hint = f"{width // 3} is the width that GPT-NeoX derives from it for a gated activation"
        message = f"{width} is more than 8 times hidden-size {model.hidden_size}"
        yield config.problem(message, "intermediate-size", hint, severity="warning")


@rule("seq_length", "max_position_embeddings")
def sequence_fits_positions(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A sample is not longer than max-position-embeddings."""
    model, data = config.section(ModelSection), config.section(DataSection)
    if data.seq_length > model.max_position_embeddings:
        yield config.problem(
            f"{data.seq_length} is more than max-position-embeddings {model.max_position_embeddings}", "seq-length"
        )


@rule("padded_vocab_size", "make_vocab_size_divisible_by")
def padding_agrees(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """padded-vocab-size is a multiple of make-vocab-size-divisible-by."""
    data = config.section(DataSection)
    rows, multiple = data.padded_vocab_size, data.make_vocab_size_divisible_by
    if rows is not None and config.is_set("make-vocab-size-divisible-by") and rows % multiple:
        yield config.problem(
            f"{rows} is not a multiple of make-vocab-size-divisible-by {multiple}", "padded-vocab-size"
        )


@rule("padded_vocab_size", "tokenizer_type")
def a_row_for_each_id(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """padded-vocab-size has a row for each id of the tokenizer."""
    rows = config.section(DataSection).padded_vocab_size
    for ids in (tell(each, ()) for each in (config.components("tokenizer") if rows else ())):
        if not isinstance(ids, Untold) and ids > rows:
            hint = "leave it out, and the tokenizer gives it"
            yield config.problem(f"{rows} is smaller than the tokenizer's {ids} ids", "padded-vocab-size", hint)


@rule("num_kv_heads", "num_attention_heads")
def kv_heads_divide_heads(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Each head of keys and values serves the same number of heads."""
    model = config.section(ModelSection)
    if model.num_kv_heads is not None and model.num_attention_heads % model.num_kv_heads:
        yield config.problem(
            f"num-attention-heads {model.num_attention_heads} cannot be divided by {model.num_kv_heads}", "num-kv-heads"
        )


@rule("num_unique_layers", "num_layers")
def unique_layers_divide_layers(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Every unique block is used equally often."""
    model = config.section(ModelSection)
    unique = model.num_unique_layers
    if unique is None:
        return
    if unique > model.num_layers or model.num_layers % unique:
        yield config.problem(f"num-layers {model.num_layers} cannot be divided by {unique}", "num-unique-layers")


@rule("param_sharing_style", "num_unique_layers")
def sharing_has_layers(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A style of sharing applies only where layers share blocks."""
    if config.is_set("param_sharing_style") and config.section(ModelSection).num_unique_layers is None:
        yield config.problem("does nothing without num-unique-layers", "param_sharing_style", severity="warning")


@rule("gpt_j_tied", "gpt_j_residual")
def one_norm_for_parallel_residual(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The sublayers can share a norm only where both have the same input."""
    model = config.section(ModelSection)
    if model.gpt_j_tied and not model.gpt_j_residual:
        yield config.problem("needs gpt-j-residual: true", "gpt_j_tied")


@rule("apply_query_key_layer_scaling", "attention_softmax_in_fp32")
def layer_scaling_is_in_fp32(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Scaling by the layer sets attention-softmax-in-fp32."""
    attention = config.section(AttentionSection)
    wide = attention.attention_softmax_in_fp32 or not config.is_set("attention_softmax_in_fp32")
    if config.section(ModelSection).apply_query_key_layer_scaling and not wide:
        hint = "remove it: apply-query-key-layer-scaling sets it to true"
        yield config.problem("contradicts apply-query-key-layer-scaling", "attention_softmax_in_fp32", hint)


@rule("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "tokenizer_type")
def documents_have_an_end(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The tokenizer defines the token that ends a document."""
    model = config.section(ModelSection)
    for key in ("reset_position_ids", "reset_attention_mask", "eod_mask_loss"):
        if getattr(model, key) and config.section(DataSection).tokenizer_type is None:
            yield config.problem("needs the token that ends a document", key, "set tokenizer-type")


@rule("use_cpu_initialization")
def weights_are_drawn_on_the_cpu(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Initial weights are always drawn on the CPU."""
    config.note("use_cpu_initialization")
    if config.is_set("use_cpu_initialization"):
        yield config.problem(
            "changes nothing: neox always draws the initial weights there", "use_cpu_initialization", severity="note"
        )


@rule("activation", "bias_gelu_fusion")
def onnx_has_no_fusion(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """onnx-safe asks for a GELU of basic operators, so it excludes a fused one."""
    spelled = config.loaded.spelled("activation").replace("-", "_")
    if spelled == "onnx_safe" and config.section(FusionSection).bias_gelu_fusion:
        yield config.problem("contradicts onnx-safe", "bias_gelu_fusion", "keep one of the two")

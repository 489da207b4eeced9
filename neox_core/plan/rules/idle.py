"""Keys that do nothing in this run, because of other keys: a note names each, and the run starts."""

from collections.abc import Callable, Iterator

from attrs import frozen

from neox_core.config.problem import Problem
from neox_core.config.schema.convert import block_of, by_key
from neox_core.config.schema.sections.communication import CommunicationSection
from neox_core.config.schema.sections.data import DataSection
from neox_core.config.schema.sections.model import ModelSection
from neox_core.config.schema.sections.precision import PrecisionSection
from neox_core.config.schema.sections.training import TrainingSection
from neox_core.config.schema.sections.zero import ZeroSection
from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import owns_parameters, rule

DRAWN_BY_STD = ("normal", "scaled_normal", "single_residual_scaled_normal")
"""The initialisations that read `init-method-std`."""


@frozen
class Idle:
    """Keys, and why they do nothing in a run; "" where they have an effect. does: what is left of their effect."""

    keys: tuple[str, ...]
    why: Callable[[Config, ClusterShape], str]
    does: str = "nothing"


def _static_scale(config: Config, shape: ClusterShape) -> str:
    fp16 = config.section(PrecisionSection).fp16
    fixed = fp16 is not None and fp16.enabled and fp16.loss_scale > 0
    return f"loss_scale is {fp16.loss_scale:g}, not dynamic" if fixed and fp16 is not None else ""


def _no_std(config: Config, shape: ClusterShape) -> str:
    model = config.section(ModelSection)
    methods = (model.init_method, model.output_layer_init_method)
    return (
        ""
        if set(methods) & set(DRAWN_BY_STD)
        else f"{' and '.join(dict.fromkeys(methods))} set their own standard deviations"
    )


def _fp32(config: Config, shape: ClusterShape) -> str:
    precision = config.section(PrecisionSection)
    return "the whole model is in fp32" if precision.dtype == "fp32" and precision.autocast is None else ""


def _own_masters(config: Config, shape: ClusterShape) -> str:
    return "fp32 weights need no masters" if config.section(PrecisionSection).dtype == "fp32" else ""


def _tested(config: Config, shape: ClusterShape) -> str:
    stage, (optimizer,) = config.section(ZeroSection).zero_optimization.stage, config.components("optimizer")
    component = optimizer.entry.component
    return f"{component.name} is tested at ZeRO stage {stage}" if stage in component.zero_stages else ""


def _no_other_optimizer(config: Config, shape: ClusterShape) -> str:
    on_host = config.section(ZeroSection).zero_optimization.updates_on_the_host
    return "" if on_host else "no optimizer state is offloaded"


def _no_evaluation(config: Config, shape: ClusterShape) -> str:
    return "" if config.section(TrainingSection).eval_iters else "eval-iters is 0"


def _no_tokenizer(config: Config, shape: ClusterShape) -> str:
    return "" if config.section(DataSection).tokenizer_type else "there is no tokenizer-type to read it"


def _alone(config: Config, shape: ClusterShape) -> str:
    return "one data-parallel rank sends no gradients" if shape.data_parallel(config) == 1 else ""


def _alone_with_slices(config: Config, shape: ClusterShape) -> str:
    sliced = config.section(ZeroSection).zero_optimization.stage > 0 and not owns_parameters(config)
    return _alone(config, shape) if sliced else ""  # else another rule has said so


def _alone_on_the_device(config: Config, shape: ClusterShape) -> str:
    zero = config.section(ZeroSection).zero_optimization
    moved = zero.updates_on_the_host or (zero.offload_param is not None and zero.offload_param.device != "none")
    return "" if moved else _alone_with_slices(config, shape)


def _alone_and_not_rounded(config: Config, shape: ClusterShape) -> str:
    """DeepSpeed rounds to the type of what would be sent, except for a model in fp32 at stage 0."""
    precision, sent = config.section(PrecisionSection), config.section(CommunicationSection).communication_data_type
    added = precision.data_types.grad_accum_dtype or precision.dtype
    as_always = sent == precision.dtype or (sent == "fp32" and added == precision.dtype)
    plain = precision.dtype == "fp32" and config.section(ZeroSection).zero_optimization.stage == 0
    return _alone(config, shape) if as_always or plain else ""


_DYNAMIC = ("initial_scale_power", "loss_scale_window", "hysteresis", "consecutive_hysteresis", "min_loss_scale")
IDLE = (
    Idle(tuple(f"fp16.{key}" for key in _DYNAMIC), _static_scale),
    Idle(("init_method_std",), _no_std),
    Idle(("attention_softmax_in_fp32",), _fp32),
    Idle(("zero_optimization.load_from_fp32_weights",), _own_masters),
    Idle(("zero_allow_untested_optimizer",), _tested),
    Idle(("zero_force_ds_cpu_optimizer",), _no_other_optimizer),
    Idle(("eval_interval",), _no_evaluation),
    Idle(("sample_prompt",), _no_tokenizer),
    Idle(("prescale_gradients",), _alone),
    Idle(("gradient_predivide_factor",), _alone, "no more than round"),
    Idle(("communication_data_type",), _alone_and_not_rounded),
    Idle(("zero_optimization.reduce_scatter", "zero_optimization.round_robin_gradients"), _alone_with_slices),
    Idle(("zero_optimization.reduce_bucket_size",), _alone_with_slices, "no more than size a buffer"),
    Idle(("zero_optimization.overlap_comm",), _alone_on_the_device),
)


@rule(*(key for each in IDLE for key in each.keys))
def keys_that_do_nothing_here(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A key that does nothing because of other keys is noted, unless it has its default."""
    for each in IDLE:
        written = [key for key in each.keys if config.is_set(key) and _is_changed(config, key)]
        why = each.why(config, shape) if written else ""
        yield from (config.problem(f"does {each.does}: {why}", key, severity="note") for key in written if why)


def _is_changed(config: Config, key: str) -> bool:
    """Whether a key has another value than its default; False where the value is wrong, which is reported."""
    first, *inner = key.split(".")
    field = next((by_key(cls)[first] for cls in config.sections if first in by_key(cls)), None)
    if field is None or first not in config.fields:
        return False
    for part in inner:
        field = by_key(block_of(field.type))[part]
    return bool(config.value(key) != field.default)

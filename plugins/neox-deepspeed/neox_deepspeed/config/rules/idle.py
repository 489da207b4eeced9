"""Keys of the engine that change nothing in a run, because of what stands beside them."""

from neox_plain.api import PrecisionSection

from neox_core.config.schema.structure import Config
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.idle import Idle, idle_rule
from neox_deepspeed.config.owners import owns_parameters
from neox_deepspeed.config.sections.communication import CommunicationSection
from neox_deepspeed.config.sections.zero import ZeroSection


def _own_masters(config: Config, shape: ClusterShape) -> str:
    return "fp32 weights need no masters" if config.section(PrecisionSection).dtype == "fp32" else ""


def _tested(config: Config, shape: ClusterShape) -> str:
    stage, (optimizer,) = config.section(ZeroSection).zero_optimization.stage, config.components("optimizer")
    component = optimizer.entry.component
    return f"{component.name} is tested at ZeRO stage {stage}" if stage in component.zero_stages else ""


def _no_other_optimizer(config: Config, shape: ClusterShape) -> str:
    on_host = config.section(ZeroSection).zero_optimization.updates_on_the_host
    return "" if on_host else "no optimizer state is offloaded"


def _alone(config: Config, shape: ClusterShape) -> str:
    return "one data-parallel rank sends no gradients" if shape.data_parallel(config) == 1 else ""


def _alone_with_slices(config: Config, shape: ClusterShape) -> str:
    sliced = config.section(ZeroSection).zero_optimization.stage > 0 and not owns_parameters(config)
    return _alone(config, shape) if sliced else ""  # else another rule has said so


def _alone_on_the_device(config: Config, shape: ClusterShape) -> str:
    zero = config.section(ZeroSection).zero_optimization
    moved = zero.updates_on_the_host or (zero.offload_param is not None and zero.offload_param.device != "none")
    return "" if moved else _alone_with_slices(config, shape)


def _alone_with_all_weights(config: Config, shape: ClusterShape) -> str:
    """A gathered weight is then the stored one itself, unless that is on the host, in a file, or quantized."""
    zero = config.section(ZeroSection).zero_optimization
    made = zero.zero_quantized_weights or (zero.offload_param is not None and zero.offload_param.device != "none")
    alone = zero.stage == 3 and not made and shape.data_parallel(config) == 1
    return "one data-parallel rank has all weights" if alone else ""


def _alone_and_not_rounded(config: Config, shape: ClusterShape) -> str:
    """DeepSpeed rounds to the type of what would be sent, except for a model in fp32 at stage 0."""
    precision, sent = config.section(PrecisionSection), config.section(CommunicationSection).communication_data_type
    added = precision.data_types.grad_accum_dtype or precision.dtype
    as_always = sent == precision.dtype or (sent == "fp32" and added == precision.dtype)
    plain = precision.dtype == "fp32" and config.section(ZeroSection).zero_optimization.stage == 0
    return _alone(config, shape) if as_always or plain else ""


keys_of_the_engine_that_do_nothing = idle_rule(
    (
        Idle(("zero_optimization.load_from_fp32_weights",), _own_masters),
        Idle(("zero_allow_untested_optimizer",), _tested),
        Idle(("zero_force_ds_cpu_optimizer",), _no_other_optimizer),
        Idle(("prescale_gradients",), _alone),
        Idle(("gradient_predivide_factor",), _alone, "no more than round"),
        Idle(("communication_data_type",), _alone_and_not_rounded),
        Idle(("zero_optimization.reduce_scatter", "zero_optimization.round_robin_gradients"), _alone_with_slices),
        Idle(("zero_optimization.reduce_bucket_size",), _alone_with_slices, "no more than size a buffer"),
        Idle(("zero_optimization.overlap_comm",), _alone_on_the_device),
        Idle(
            (
                "zero_optimization.stage3_prefetch_bucket_size",
                "zero_optimization.stage3_max_live_parameters",
                "zero_optimization.stage3_max_reuse_distance",
                "zero_optimization.stage3_param_persistence_threshold",
            ),
            _alone_with_all_weights,
        ),
    )
)

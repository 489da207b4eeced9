"""Rules between keys: each a small function that yields what is wrong. One whose section is invalid is skipped."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from neox_core.config.convert import fields_of
from neox_core.config.problem import Problem
from neox_core.config.sections.engine import OptimizerSection, PrecisionSection, ZeroSection
from neox_core.config.sections.host import DataSection
from neox_core.config.sections.model import ModelSection, RegularizationSection
from neox_core.config.sections.training import BatchSection, CheckpointSection, LearningRateSection
from neox_core.config.structure import Config, SectionInvalidError
from neox_core.hooks.catalog import Catalog
from neox_core.plan.batch import BatchError, solve_batch
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.split import SplitError, shares

Rule = Callable[[Config, ClusterShape], Iterator[Problem]]


def check_rules(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """All that the core's rules find."""
    for rule in RULES:
        try:
            yield from rule(config, shape)
        except SectionInvalidError:
            continue


def plugin_rules(config: Config, catalog: Catalog) -> list[Problem]:
    """What the plugins' `neox_check_config` find; asked once every section is valid. A rule that raises is an error."""
    found: list[Problem] = []
    plugins = catalog.manager.get_plugins()
    for plugin in sorted(plugins, key=lambda each: str(catalog.manager.get_name(each))):
        hook = catalog.manager.subset_hook_caller("neox_check_config", [each for each in plugins if each is not plugin])
        try:
            said = [problem for problems in hook(config=config) for problem in problems]
            found += [config.problem(each.message, each.key, each.hint, each.severity) for each in said]
        except (Exception, SystemExit) as error:  # noqa: BLE001 a plugin may raise anything
            name = str(catalog.manager.get_name(plugin)).partition("/")[0]
            cause = " ".join(f"{type(error).__name__}: {error}".split())
            found.append(Problem(f"the rules of plugin {name} failed: {cause}", hint="tell its author"))
    return found


def unread_keys(config: Config, catalog: Catalog) -> Iterator[Problem]:
    """Keys that a plugin owns apart from its components, that are set, and that none of the rules has read.

    Asked after `plugin_rules`: run.json has no place for such a key, so a rule is all that can act on it.
    """
    for plugin, section in catalog.registry.sections:
        for field in fields_of(section.settings):
            if config.is_set(field.name) and field.name not in config.read:
                hint = f"remove it, or tell the author of {plugin.id}: what a rank needs belongs to a component"
                yield config.problem(f"nothing reads it in {plugin.id} {plugin.version}", field.name, hint)


def heads_divide_hidden(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    model = config.section(ModelSection)
    if model.hidden_size % model.num_attention_heads:
        yield config.problem(
            f"{model.hidden_size} cannot be divided by num-attention-heads {model.num_attention_heads}", "hidden-size"
        )


def one_residual(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    model = config.section(ModelSection)
    if model.gpt_j_residual and model.apply_residual_connection_post_layernorm:
        yield config.problem(
            "excludes gpt-j-residual",
            "apply-residual-connection-post-layernorm",
            "it has a norm for each sublayer",
        )


def sequence_fits_positions(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    model, data = config.section(ModelSection), config.section(DataSection)
    if data.seq_length > model.max_position_embeddings:
        yield config.problem(
            f"{data.seq_length} is more than max-position-embeddings {model.max_position_embeddings}", "seq-length"
        )


def vocabulary_known(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    data = config.section(DataSection)
    if data.tokenizer_type is None and data.padded_vocab_size is None:
        yield config.problem("is required", "tokenizer-type", "or padded-vocab-size, for a dataset without tokenizer")


def padding_agrees(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    data = config.section(DataSection)
    rows, multiple = data.padded_vocab_size, data.make_vocab_size_divisible_by
    if rows is not None and config.is_set("make-vocab-size-divisible-by") and rows % multiple:
        yield config.problem(f"{rows} is no multiple of make-vocab-size-divisible-by {multiple}", "padded-vocab-size")


def batch_fits(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    batch = config.section(BatchSection)
    try:
        solve_batch(
            batch.train_batch_size,
            batch.train_micro_batch_size_per_gpu,
            batch.gradient_accumulation_steps,
            shape.num_ranks,
        )
    except BatchError as error:
        yield config.problem(error.message, error.key, error.hint)


def floor_below_peak(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    rate = config.section(LearningRateSection)
    (optimizer,) = config.components("optimizer")
    peak = getattr(optimizer.settings, "lr", None)
    if peak is None:
        yield config.problem(
            f"{optimizer.entry.qualified} has no setting lr, so no schedule can drive it", "optimizer.type"
        )
    elif rate.min_lr > peak:
        yield config.problem(f"{rate.min_lr} is more than the peak optimizer.params.lr {peak}", "min-lr")


def one_schedule_at_resume(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    rate = config.section(LearningRateSection)
    if rate.override_lr_scheduler and rate.use_checkpoint_lr_scheduler:
        yield config.problem("contradicts use-checkpoint-lr-scheduler", "override-lr-scheduler", "keep one of the two")


def one_precision(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    precision = config.section(PrecisionSection)
    enabled = [key for key in ("fp16", "bf16", "torch_autocast") if _enabled(getattr(precision, key))]
    if len(enabled) > 1:
        yield config.problem(f"enabled together with {enabled[0]}", enabled[1], "enable one")


def fp16_needs_gpu(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    if _enabled(config.section(PrecisionSection).fp16) and shape.device == "cpu":
        yield config.problem("fp16 does not train on a CPU", "fp16.enabled", "bf16: {enabled: true} does")


def hysteresis_needs_zero(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    fp16 = config.section(PrecisionSection).fp16
    if fp16 is None or not fp16.enabled or config.section(ZeroSection).zero_optimization.stage > 0:
        return
    for key in ("fp16.hysteresis", "fp16.consecutive_hysteresis"):
        if config.is_set(key):
            yield config.problem(
                "DeepSpeed ignores it at ZeRO stage 0", key, "zero_optimization: {stage: 1}, or remove it"
            )


def fp16_loss_needs_fp16(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    precision = config.section(PrecisionSection)
    if precision.fp16_lm_cross_entropy and not _enabled(precision.fp16):
        yield config.problem("needs fp16: {enabled: true}", "fp16-lm-cross-entropy")


def sharded_optimizer_tested(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    stage = config.section(ZeroSection).zero_optimization.stage
    (optimizer,) = config.components("optimizer")
    component = optimizer.entry.component
    if stage not in component.zero_stages and not config.section(OptimizerSection).zero_allow_untested_optimizer:
        tested = ", ".join(map(str, component.zero_stages))
        yield config.problem(
            f"{component.name} is tested at ZeRO stage {tested} only, not at {stage}",
            "zero_optimization.stage",
            "zero-allow-untested-optimizer: true runs it anyway",
        )


def clipping_agrees(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    params = config.section(OptimizerSection).optimizer.params
    clip = config.section(RegularizationSection).gradient_clipping
    if "max_grad_norm" in params and not _number_is(params["max_grad_norm"], clip):
        yield config.problem(
            f"differs from gradient-clipping {clip}",
            "optimizer.params.max_grad_norm",
            "gradient-clipping is the key that counts: remove this one",
        )


def weight_decay_agrees(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    (optimizer,) = config.components("optimizer")
    inner = getattr(optimizer.settings, "weight_decay", None)
    outer = config.section(RegularizationSection).weight_decay
    both = config.is_set("weight-decay") and config.is_set("optimizer.params.weight_decay")
    if both and not _number_is(inner, outer):
        yield config.problem(
            f"differs from weight-decay {outer}", "optimizer.params.weight_decay", "keep one of the two"
        )


def save_has_interval(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    checkpoint = config.section(CheckpointSection)
    if checkpoint.save is not None and checkpoint.save_interval is None:
        yield config.problem("needs save-interval", "save", "save-interval: steps between checkpoints")
    if checkpoint.save is None:
        for key in ("save_interval", "keep_last_n_checkpoints"):
            if getattr(checkpoint, key) is not None:
                yield config.problem("does nothing without save", key, "save: a folder for the checkpoints", "warning")


def finetune_has_source(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    checkpoint = config.section(CheckpointSection)
    for key in ("finetune", "no_load_optim", "no_load_rng"):
        if getattr(checkpoint, key) and checkpoint.load is None:
            yield config.problem("does nothing without load", key, "load: the folder of a checkpoint")


def split_is_shares(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    try:
        shares(config.section(DataSection).split)
    except SplitError as error:
        yield config.problem(str(error), "split", "such as 969, 30, 1")


def data_is_there(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    prefix = config.section(DataSection).data_path
    if prefix is None:
        yield config.problem("is required", "data-path", "`neox data prepare` makes a dataset")
    elif not _any_file(Path(prefix)):
        yield config.problem(f"there is no dataset {prefix}", "data-path", "`neox data prepare` makes one")


def _any_file(prefix: Path) -> bool:
    try:
        return any(
            path.name == prefix.name or path.name.startswith(f"{prefix.name}.") for path in prefix.parent.iterdir()
        )
    except OSError:
        return False


def _enabled(block: Any) -> bool:
    return block is not None and bool(block.enabled)


def _number_is(value: Any, other: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and float(value) == float(other)


RULES: tuple[Rule, ...] = (
    heads_divide_hidden,
    one_residual,
    sequence_fits_positions,
    vocabulary_known,
    padding_agrees,
    batch_fits,
    floor_below_peak,
    one_schedule_at_resume,
    one_precision,
    fp16_needs_gpu,
    hysteresis_needs_zero,
    fp16_loss_needs_fp16,
    sharded_optimizer_tested,
    clipping_agrees,
    weight_decay_agrees,
    save_has_interval,
    finetune_has_source,
    split_is_shares,
    data_is_there,
)

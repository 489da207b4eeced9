"""What the blocks must be, given each other and the rest of the config; a rule a function."""

from collections.abc import Iterator
from typing import Any

from neox_core.api import Problem

BLOCK = "data_efficiency"
SAMPLING = f"{BLOCK}.data_sampling"
CURRICULUM = f"{SAMPLING}.curriculum_learning"
METRICS = f"{CURRICULUM}.curriculum_metrics"
LTD = f"{BLOCK}.data_routing.random_ltd"
OLDER = "curriculum_learning"
SEQLEN = "seqlen"
"""The metric that shortens samples instead of choosing among them."""
READ = {
    "fixed_linear": ("total_curriculum_step", "difficulty_step"),
    "fixed_root": ("total_curriculum_step", "difficulty_step", "root_degree"),
    "fixed_discrete": ("difficulty", "max_step"),
    "custom": (),
}


def problems(config: Any) -> Iterator[Problem]:
    """All that the rules find."""
    block = config.value(BLOCK) if config.is_set(BLOCK) else None
    older = config.value(OLDER) if config.is_set(OLDER) else None
    if block is not None:
        yield from switches_are_reached(block)
        if block.samples:
            yield from metrics_are_whole(config, block)
            yield from samples_come_from_one_dataset(config, block)
        if block.routes:
            yield from layers_agree(config, block.data_routing.random_ltd)
            yield from kept_tokens_grow(config, block.data_routing.random_ltd)
            yield from layers_are_a_decoders(config, block.data_routing.random_ltd)
    if older is not None and older.enabled:
        if older.curriculum_type is None:
            yield Problem("is required", f"{OLDER}.curriculum_type", "curriculum_type: seqlen")
        yield from schedule_is_whole(older, OLDER)
        yield from lengths_fit(config, older, OLDER)


def switches_are_reached(block: Any) -> Iterator[Problem]:
    """A switch counts only where every switch around it is on."""
    outer = [(BLOCK, block)]
    sampling, routing = block.data_sampling, block.data_routing
    for chain in (
        [*outer, (SAMPLING, sampling), (CURRICULUM, sampling.curriculum_learning)],
        [*outer, (f"{BLOCK}.data_routing", routing), (LTD, routing.random_ltd)],
    ):
        off = next((path for path, each in chain if not each.enabled), None)
        for path, each in chain:
            if off is not None and each.enabled and len(path) > len(off):
                yield Problem(f"does nothing while {off}.enabled is false", f"{path}.enabled", severity="warning")
    inner = (sampling, sampling.curriculum_learning, routing, routing.random_ltd)
    if block.enabled and not any(each.enabled for each in inner):
        said = f"does nothing while {CURRICULUM}.enabled and {LTD}.enabled are false"
        yield Problem(said, f"{BLOCK}.enabled", severity="warning")


def metrics_are_whole(config: Any, block: Any) -> Iterator[Problem]:
    """A curriculum has metrics, each with all that says how it is read."""
    metrics = block.data_sampling.curriculum_learning.curriculum_metrics
    if not metrics:
        yield Problem("is required while the curriculum is enabled", METRICS, "name a metric, or enabled: false")
    for name, metric in metrics.items():
        path = f"{METRICS}.{name}"
        yield from schedule_is_whole(metric, path)
        if name == SEQLEN:
            yield from seqlen_reads_no_index(metric, path)
            yield from lengths_fit(config, metric, path)
        else:
            yield from index_is_there(metric, path)


def schedule_is_whole(terms: Any, path: str) -> Iterator[Problem]:
    """A schedule has a lowest and a highest difficulty and the numbers of its type, and no others."""
    yield from _required(terms, path, "min_difficulty", "max_difficulty", "schedule_type")
    low, high, config = terms.min_difficulty, terms.max_difficulty, terms.schedule_config
    if low is not None and high is not None and low > high:
        yield Problem(f"{low} is above max_difficulty {high}", f"{path}.min_difficulty")
    if terms.schedule_type is None:
        return
    if terms.schedule_type == "custom":
        yield Problem(
            "needs a function, which a config cannot hold",
            f"{path}.schedule_type",
            "write a plugin with a curriculum of your own, see docs/hooks.md, or choose another schedule",
        )
        return
    read = READ[terms.schedule_type]
    for key in (each for keys in READ.values() for each in keys):
        written = getattr(config, key) is not None
        if key in read and not written:
            yield Problem(f"is required by schedule_type: {terms.schedule_type}", f"{path}.schedule_config.{key}")
        elif key not in read and written:
            yield Problem(f"is not read by schedule_type: {terms.schedule_type}", f"{path}.schedule_config.{key}")
    if terms.schedule_type == "fixed_discrete":
        yield from levels_fit(terms, path)


def levels_fit(terms: Any, path: str) -> Iterator[Problem]:
    """Levels rise from min_difficulty on to max_difficulty, each but the last with the step at which it ends."""
    levels, ends = terms.schedule_config.difficulty, terms.schedule_config.max_step
    if levels is None or ends is None:
        return
    path = f"{path}.schedule_config"
    if len(levels) != len(ends) + 1:
        yield Problem(f"has {len(levels)} values for {len(ends)} of max_step: one more is needed", f"{path}.difficulty")
    if list(levels) != sorted(levels):
        yield Problem("must not fall", f"{path}.difficulty")
    if list(ends) != sorted(set(ends)):
        yield Problem("must rise", f"{path}.max_step")
    low, high = terms.min_difficulty, terms.max_difficulty
    if low is not None and high is not None and any(not low <= level <= high for level in levels):
        yield Problem(f"must stay from min_difficulty {low} to max_difficulty {high}", f"{path}.difficulty")


def seqlen_reads_no_index(metric: Any, path: str) -> Iterator[Problem]:
    """All samples have seq-length tokens: seqlen shortens them instead of choosing."""
    if metric.clustering_type != "single_cluster":
        yield Problem(
            "must be single_cluster: all samples have seq-length tokens, and seqlen shortens them",
            f"{path}.clustering_type",
        )
    if metric.difficulty_type not in (None, "value"):
        yield Problem("must be value: seqlen is a number of tokens", f"{path}.difficulty_type")
    for key in ("index_to_sample_path", "index_to_metric_path"):
        if getattr(metric, key) is not None:
            yield Problem("is not read: seqlen shortens samples", f"{path}.{key}", "remove it")


def index_is_there(metric: Any, path: str) -> Iterator[Problem]:
    """A metric that chooses samples reads an index of them; one by value reads that of the values too."""
    yield from _required(metric, path, "difficulty_type", hint="value or percentile")
    if metric.clustering_type != "schedule_based":
        yield Problem(
            f"must be schedule_based: without an index only {SEQLEN} does something", f"{path}.clustering_type"
        )
    yield from _required(metric, path, "index_to_sample_path")
    if metric.difficulty_type == "value" and "percentile_merged" in (metric.index_to_sample_path or ""):
        yield Problem("a merged index has no values: difficulty_type: percentile", f"{path}.index_to_sample_path")
    if metric.difficulty_type == "value" and metric.index_to_metric_path is None:
        yield Problem("is required by difficulty_type: value", f"{path}.index_to_metric_path")
    elif metric.difficulty_type == "percentile":
        if metric.index_to_metric_path is not None:
            yield Problem(
                "is not read by difficulty_type: percentile", f"{path}.index_to_metric_path", severity="warning"
            )
        if metric.max_difficulty is not None and metric.max_difficulty < 1:
            yield Problem("must be 1 or more: it is how many parts the samples have", f"{path}.max_difficulty")


def lengths_fit(config: Any, terms: Any, path: str) -> Iterator[Problem]:
    """Lengths go from 1 token or more to seq-length, with layers that bear any length."""
    seq_length = config.value("seq_length")
    if terms.min_difficulty is not None and terms.min_difficulty < 1:
        yield Problem("must be 1 token or more", f"{path}.min_difficulty")
    if terms.max_difficulty not in (None, seq_length):
        yield Problem(f"must be seq-length, {seq_length}, not {terms.max_difficulty}", f"{path}.max_difficulty")
    step = terms.schedule_config.difficulty_step
    if step is not None and step % 8:
        yield Problem(
            f"{step} is not a multiple of 8, which makes tensor cores slower",
            f"{path}.schedule_config.difficulty_step",
            severity="warning",
        )
    yield from _whole_sequences(config, path)


def samples_come_from_one_dataset(config: Any, block: Any) -> Iterator[Problem]:
    """An index is of one dataset; and the sampler's readers take the place of num-workers."""
    sampling = block.data_sampling
    chooses = set(sampling.curriculum_learning.curriculum_metrics) - {SEQLEN}
    if chooses and config.is_set("train_data_paths"):
        yield Problem("a curriculum's index is of one dataset: set data-path", "train_data_paths")
    if config.is_set("num_workers") and config.value("num_workers") != sampling.num_workers:
        yield Problem(
            f"the curriculum reads with {SAMPLING}.num_workers, {sampling.num_workers}", "num_workers", "set both alike"
        )


def layers_agree(config: Any, ltd: Any) -> Iterator[Problem]:
    """The layers that drop tokens are layers of the model, as many as is said."""
    num_layers, ids = config.value("num_layers"), ltd.random_ltd_layer_id
    if not ids:
        yield Problem("is required", f"{LTD}.random_ltd_layer_id")
    if len(set(ids)) != len(ids) or any(not 0 <= layer < num_layers for layer in ids):
        yield Problem(f"must be different layers from 0 to {num_layers - 1}", f"{LTD}.random_ltd_layer_id")
    if ltd.random_ltd_layer_num not in (None, len(ids)):
        yield Problem(f"must be {len(ids)}, the length of random_ltd_layer_id", f"{LTD}.random_ltd_layer_num")
    if ltd.total_layer_num not in (None, num_layers):
        yield Problem(f"must be num-layers, {num_layers}", f"{LTD}.total_layer_num")


def kept_tokens_grow(config: Any, ltd: Any) -> Iterator[Problem]:
    """Kept tokens grow from one or more to the whole sequence."""
    path, terms = f"{LTD}.random_ltd_schedule", ltd.random_ltd_schedule
    yield from _required(terms, path, "min_value", "max_value", "schedule_type")
    yield from _required(terms.schedule_config, f"{path}.schedule_config", "require_steps", "seq_per_step")
    low, high, grain = terms.min_value, terms.max_value, terms.schedule_config.seq_per_step
    seq_length = config.value("seq_length")
    if high not in (None, seq_length):
        yield Problem(f"must be seq-length, {seq_length}, so that dropping ends", f"{path}.max_value")
    if low is not None and high is not None and low > high:
        yield Problem(f"{low} is above max_value {high}", f"{path}.min_value")
    if low is not None and grain is not None and low < grain:
        yield Problem(f"{low} is below seq_per_step {grain}: no token would be kept", f"{path}.min_value")


def layers_are_a_decoders(config: Any, ltd: Any) -> Iterator[Problem]:
    """The layers are a decoder's, of [batch, seq, hidden], and see all that is before a token."""
    if ltd.model_type == "encoder":
        yield Problem("neox trains decoders: model_type: decoder", f"{LTD}.model_type")
    if ltd.hidden_state_order == "seq_batch_dim":
        said = "changes no number: tokens are dropped along the axis of positions, wherever the model has it"
        yield Problem(said, f"{LTD}.hidden_state_order", severity="note")
    if ltd.model_mask_name:
        said = "does nothing: layers have no mask argument, what a token sees follows from its place"
        yield Problem(said, f"{LTD}.model_mask_name", "remove it", severity="warning")
    yield from _whole_sequences(config, f"{LTD}.enabled")


def _required(block: Any, path: str, *keys: str, hint: str = "") -> Iterator[Problem]:
    """The keys of a block that have to be there and are not."""
    yield from (Problem("is required", f"{path}.{key}", hint) for key in keys if getattr(block, key) is None)


def _whole_sequences(config: Any, path: str) -> Iterator[Problem]:
    if config.value("sequence_parallel"):
        yield Problem("is not available with sequence-parallel, whose ranks have parts of a sequence", path)
    if config.components("sparse layout"):
        yield Problem("is not available with sparse attention, whose layouts are of seq-length tokens", path)
    if path.startswith(LTD) and config.value("sliding_window_width") is not None:
        yield Problem("is not available with sliding windows, which count all tokens of a sample", path)

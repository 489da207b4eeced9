"""The blocks `data_efficiency` and `curriculum_learning`, as in DeepSpeed's documents."""

from typing import Any, Literal

from attrs import Factory, frozen
from attrs import validators as v

from neox_core.api import setting


def _optional(*, help: str, unit: str = "", check: Any = None) -> Any:
    return setting(None, help=help, unit=unit, check=None if check is None else v.optional(check), origin="deepspeed")


def _switch(help: str) -> Any:
    return setting(False, help=help, origin="deepspeed")


def _block(default: Any, help: str) -> Any:
    return setting(default, help=help, origin="deepspeed")


@frozen
class ScheduleConfig:
    """Numbers of a schedule; which of them are read says its type."""

    total_curriculum_step: int | None = _optional(
        unit="steps", check=v.gt(0), help="Step at which difficulty is highest (fixed_linear, fixed_root)."
    )
    difficulty_step: int | None = _optional(
        check=v.gt(0), help="Difficulty changes by multiples of this (fixed_linear, fixed_root)."
    )
    root_degree: int | None = _optional(check=v.gt(0), help="Degree of the root (fixed_root); 1 is a straight line.")
    difficulty: tuple[int, ...] | None = _optional(help="Difficulties of the phases (fixed_discrete).")
    max_step: tuple[int, ...] | None = _optional(
        unit="steps", help="Last step of each phase but the final one (fixed_discrete)."
    )


@frozen
class Metric:
    """One measure of how hard a sample is, and how hard samples may be at each step."""

    index_to_sample_path: str | None = _optional(
        help="Index of the samples by value of the metric, without .bin and .idx."
    )
    index_to_metric_path: str | None = _optional(
        help="Index of these values, without .bin and .idx (difficulty_type: value)."
    )
    difficulty_type: Literal["value", "percentile"] | None = _optional(
        help="Whether difficulty is a value of the metric, or a share of the samples in max_difficulty-ths."
    )
    clustering_type: Literal["schedule_based", "single_cluster"] | None = _optional(
        help="Whether the metric chooses samples (schedule_based) or reads no index (single_cluster: seqlen)."
    )
    min_difficulty: int | None = _optional(help="Difficulty at the start.")
    max_difficulty: int | None = _optional(help="Difficulty at the end.")
    schedule_type: Literal["fixed_linear", "fixed_root", "fixed_discrete", "custom"] | None = _optional(
        help="How difficulty grows."
    )
    schedule_config: ScheduleConfig = _block(ScheduleConfig(), "Block of the schedule.")


@frozen
class CurriculumBlock:
    """Samples by difficulty."""

    enabled: bool = _switch("Read easy samples first.")
    data_cluster_path: str | None = _optional(
        help="Folder for lists of the samples that each increase of difficulty lets in. Default: none are written."
    )
    curriculum_metrics: dict[str, Metric] = setting(
        Factory(dict),
        help="Block: one block a metric, under a name of your choice; seqlen shortens the samples.",
        origin="deepspeed",
        each="metric",
    )


@frozen
class SamplingBlock:
    """Which samples a step reads."""

    enabled: bool = _switch("Switch of the sampling.")
    num_epochs: int = setting(
        1_000, help="Most passes over the data.", unit="epochs", check=v.gt(0), origin="deepspeed"
    )
    num_workers: int = setting(
        0,
        help="Processes that load the samples, instead of num-workers.",
        check=v.ge(0),
        changes="speed",
        origin="deepspeed",
    )
    curriculum_learning: CurriculumBlock = _block(CurriculumBlock(), "Block: begin with easy samples.")


@frozen
class GrowthConfig:
    """Numbers of the growth."""

    require_steps: int | None = _optional(
        unit="steps", check=v.gt(0), help="Step at which nothing is dropped any more."
    )
    seq_per_step: int | None = _optional(unit="tokens", check=v.gt(0), help="Tokens that each increase adds.")


@frozen
class RandomLtdSchedule:
    """How many tokens the layers see."""

    min_value: int | None = _optional(unit="tokens", check=v.gt(0), help="Tokens kept at the start.")
    max_value: int | None = _optional(unit="tokens", check=v.gt(0), help="Tokens kept at the end: all.")
    schedule_type: Literal["fixed_linear"] | None = _optional(help="How that number grows.")
    schedule_config: GrowthConfig = _block(GrowthConfig(), "Block of the growth.")


@frozen
class RandomLtdBlock:
    """Random layer-wise token dropping."""

    enabled: bool = _switch("Let some layers see a random part of the tokens.")
    total_layer_num: int | None = _optional(unit="layers", help="Layers of the model: must agree with num-layers.")
    random_ltd_layer_num: int | None = _optional(
        unit="layers", help="Layers that drop tokens: must agree with random_ltd_layer_id."
    )
    random_ltd_layer_id: tuple[int, ...] = setting((), help="These layers, counted from 0.", origin="deepspeed")
    model_mask_name: str | None = _optional(help="Not needed: what a token sees follows from its place.")
    model_type: Literal["decoder", "encoder"] | None = _optional(help="A decoder, where it is said.")
    hidden_state_order: Literal["batch_seq_dim", "seq_batch_dim"] | None = _optional(
        help="The axes of activations: changes no number, since neox knows its own."
    )
    random_ltd_schedule: RandomLtdSchedule = _block(RandomLtdSchedule(), "Block: how many tokens are kept.")


@frozen
class RoutingBlock:
    """Which tokens pass which layers."""

    enabled: bool = _switch("Switch of the routing.")
    random_ltd: RandomLtdBlock = _block(RandomLtdBlock(), "Block of random layer-wise token dropping.")


@frozen
class DataEfficiencyBlock:
    """Curricula, and layers that skip tokens."""

    enabled: bool = _switch("Switch of everything in the block.")
    seed: int = setting(1_234, help="Seed of sampling and routing.", origin="deepspeed")
    data_routing: RoutingBlock = _block(RoutingBlock(), "Block: which tokens pass which layers.")
    data_sampling: SamplingBlock = _block(SamplingBlock(), "Block: which samples a step reads.")

    @property
    def samples(self) -> bool:
        """Whether every switch around the curriculum is on."""
        return self.enabled and self.data_sampling.enabled and self.data_sampling.curriculum_learning.enabled

    @property
    def routes(self) -> bool:
        """Whether every switch around the token dropping is on."""
        return self.enabled and self.data_routing.enabled and self.data_routing.random_ltd.enabled


@frozen
class DataEfficiencySettings:
    data_efficiency: DataEfficiencyBlock = _block(DataEfficiencyBlock(), "Block of curricula and skipped tokens.")

    @property
    def enabled(self) -> bool:
        """Whether the config asks for it."""
        return self.data_efficiency.samples or self.data_efficiency.routes


@frozen
class SeqlenBlock:
    """The older curriculum, by sequence length."""

    enabled: bool = _switch("Begin with short sequences.")
    curriculum_type: Literal["seqlen"] | None = _optional(help="What grows: the sequence length.")
    min_difficulty: int | None = _optional(unit="tokens", help="Sequence length at the start.")
    max_difficulty: int | None = _optional(unit="tokens", help="Sequence length at the end: seq-length.")
    schedule_type: Literal["fixed_linear", "fixed_root", "fixed_discrete"] | None = _optional(
        help="How the length grows."
    )
    schedule_config: ScheduleConfig = _block(ScheduleConfig(), "Block of the schedule.")


@frozen
class SeqlenSettings:
    curriculum_learning: SeqlenBlock = _block(SeqlenBlock(), "Block of the older curriculum, by sequence length.")

    @property
    def enabled(self) -> bool:
        """Whether the config asks for it."""
        return self.curriculum_learning.enabled

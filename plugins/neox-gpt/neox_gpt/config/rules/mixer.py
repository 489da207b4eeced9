"""Rules of mixers: what a run asks of them, and what their planners tell."""

from collections.abc import Iterator

from neox_core.api import Problem
from neox_core.config.schema.sections.parallelism import ParallelismSection
from neox_core.config.schema.sections.training import TrainingSection
from neox_core.config.schema.structure import Config
from neox_core.contracts.architecture import Untold
from neox_core.plan.cluster import ClusterShape
from neox_core.plan.rules.rule import rule
from neox_gpt.config.attention_config import mixer_of_layer
from neox_gpt.config.mixers import others_chosen
from neox_gpt.config.sections.attention import AttentionSection
from neox_gpt.config.sections.model import ModelSection
from neox_gpt.config.size import mixer_sizes, position_size
from neox_gpt.config.told import dimension
from neox_gpt.contracts import ByHead, MixerSize, PositionSize

KEY = "attention-config"
CAUSAL_LM = "causal-lm"


def _told(config: Config) -> Iterator[tuple[str, MixerSize | Untold]]:
    """The name of each mixer in use, and what its planner tells."""
    for chosen, size in zip(config.components("mixer"), mixer_sizes(config), strict=True):
        yield chosen.entry.component.name, size


@rule("attention_config")
def mixers_have_planners(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """The host asks the planner of each mixer."""
    for chosen, size in zip(config.components("mixer"), mixer_sizes(config), strict=True):
        if isinstance(size, Untold):
            yield config.problem(size.reason, KEY, f"tell the author of {chosen.entry.plugin.id}: see docs/hooks.md")


@rule("attention_config", "num_layers", "num_unique_layers")
def mixers_of_shared_blocks(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Layers that share a block have the same mixer."""
    model, written = config.section(ModelSection), config.section(AttentionSection).attention_config
    if model.num_unique_layers in (None, model.num_layers):
        return
    try:
        places = mixer_of_layer(model.num_layers, written, others_chosen(config))
    except ValueError:  # another rule names the number of layers
        return
    if places:
        yield config.problem("excludes num-unique-layers", KEY, "name one mixer for all layers")


@rule("attention_config", "objective")
def mixers_are_causal(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """What predicts the next token must not see it."""
    (objective,) = config.components("objective")
    for name, size in _told(config):
        if objective.entry.component.name == CAUSAL_LM and isinstance(size, MixerSize) and not size.causal:
            yield config.problem(f"{name} is not causal, and {CAUSAL_LM} predicts the next token", KEY)


@rule("attention_config", "sample_prompt")
def mixers_can_decode(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A sample at the end of a run is generated token by token."""
    if config.section(TrainingSection).sample_prompt is None:
        return
    for name, size in _told(config):
        if isinstance(size, MixerSize) and not size.decodes:
            message = f"needs a state for decoding, which the mixer {name} does not have"
            yield config.problem(message, "sample-prompt", "remove it")


@rule("attention_config", "pos_emb")
def positions_are_taken(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """A position that acts in mixers alone needs one that takes positions."""
    (position,), size = config.components("position"), position_size(config)
    taken = any(isinstance(mixer, Untold) or mixer.needs_positions for mixer in mixer_sizes(config))
    if isinstance(size, PositionSize) and not size.embeds and not taken:
        message = f"{position.entry.component.name} does nothing: no layer has a mixer that takes positions"
        yield config.problem(message, "pos_emb", "set it to none")


@rule("attention_config", "model_parallel_size")
def mixers_can_be_split(config: Config, shape: ClusterShape) -> Iterator[Problem]:
    """Tensor-parallel ranks have equal parts of what a mixer splits."""
    tensor, model = config.section(ParallelismSection).model_parallel_size, config.section(ModelSection)
    widths = (model.hidden_size, model.num_attention_heads, model.num_kv_heads or model.num_attention_heads)
    if any(width % tensor for width in widths):  # another rule names them
        return
    for name, size in _told(config):
        if tensor == 1 or isinstance(size, Untold):
            continue
        if size.one_rank_only:
            yield config.problem(f"{name} cannot be split over ranks", KEY, "model-parallel-size: 1")
            continue
        for part, how in size.split.items():
            if isinstance(how, ByHead) and how.heads % tensor:
                message = f"{part} of {name} has {how.heads} heads, which {tensor} ranks cannot share"
                yield config.problem(message, KEY)
            elif size.shapes[part][dimension(how)] % tensor:
                sides = " x ".join(map(str, size.shapes[part]))
                yield config.problem(f"{part} of {name} is {sides}, and cannot be split over {tensor} ranks", KEY)

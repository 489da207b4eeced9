"""The mixer of each layer, from `attention-config`: softmax attention, and those that plugins offer."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from neox_core.config.problem import MisfitError
from neox_core.config.schema.structure import Config
from neox_core.errors import UsageError
from neox_core.hooks.install import package_of
from neox_core.hooks.registry import Registry
from neox_core.plan.planners import architecture_planner
from neox_gpt.config.attention_config import SOFTMAX, is_layout_or_dense, names_in
from neox_gpt.config.kinds import MIXER, SPARSE_LAYOUT
from neox_gpt.config.plan import SOFTMAX_ATTENTION, GPTPlan


def other_mixers(attention_config: Sequence[Any] | None, registry: Registry) -> tuple[str, ...]:
    """The names in `attention-config` that are of mixers, softmax attention left out.

    A name that nobody offers is of the kind that has one most like it. Raises MisfitError for one that both kinds have.
    """
    names = () if attention_config is None else names_in(attention_config)
    return tuple(name for name in names if not is_layout_or_dense(name) and _is_mixer(name, registry))


def _is_mixer(name: str, registry: Registry) -> bool:
    mixer, layout = (_offered(kind.name, name, registry) for kind in (MIXER, SPARSE_LAYOUT))
    if mixer and layout:
        ways = " or ".join(entry.qualified for entry in (*mixer, *layout))
        raise MisfitError(f"{name} is a mixer and a sparse layout", "attention-config", f"write {ways}")
    if mixer or layout or package_of(SPARSE_LAYOUT.name, name):
        return bool(mixer)
    layouts = registry.names(SPARSE_LAYOUT.name)
    near = get_close_matches(name.rpartition(":")[2], (*registry.names(MIXER.name), *layouts), 1)
    return not near or near[0] not in layouts


def _offered(kind: str, name: str, registry: Registry) -> list[Any]:
    plugin, _, plain = name.rpartition(":")
    return [each for each in registry.offers(kind, plain) if plugin in ("", each.plugin.id)]


def others_chosen(config: Config) -> frozenset[str]:
    """The names by which a config may choose the mixers that it has, softmax attention left out."""
    entries = [chosen.entry for chosen in config.components(MIXER.name)]
    return frozenset(name for each in entries for name in (each.component.name, each.qualified)) - {SOFTMAX}


def is_causal(config: Config) -> bool:
    """Whether no token of a config's model sees a later one, as in a decoder. Raises as `architecture_planner`."""
    planner = architecture_planner(config)
    plan_class: type[GPTPlan] = getattr(planner, "plan_class", GPTPlan)
    return plan_class.causal


def has_softmax_attention(config: Config) -> bool:
    """Whether some layer has causal softmax attention."""
    return any(_identity(each.entry) == SOFTMAX_ATTENTION.identity for each in config.components(MIXER.name))


def _identity(entry: Any) -> str:
    return f"{entry.kind} {entry.qualified}"


def require_decoding(model: GPTPlan) -> None:
    """Raises UsageError for a model that cannot generate text."""
    for mixer, facts in zip(model.mixers or (), model.mixer_facts or (), strict=True):
        if not facts.decodes:
            raise UsageError(f"{mixer.owner}: has no state for decoding, so its model cannot generate text")

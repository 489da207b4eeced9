"""Plans for checks, made from configs as a run's are, with small components of the kit where a config needs some."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import fields, frozen

from neox_core.api import Component, ConfigSection, setting
from neox_core.contracts.engine import EnginePlanner, Sharding
from neox_core.errors import ConfigError
from neox_core.hooks.catalog import Catalog
from neox_core.hooks.loader import load_plugins
from neox_core.hooks.registry import Entry, PluginInfo, Registry
from neox_core.plan.cluster import Machine
from neox_core.plan.resolve import Resolved, prepare_run
from neox_core.plan.runfile import PrecisionPlan


@frozen
class Rate:
    """The settings of the optimizer."""

    lr: float = setting(0.01, help="Learning rate.")
    weight_decay: float = setting(0.0, help="Weight decay.")


KIT = PluginInfo("neox-author-kit", "0.1.0", __name__)
_HERE = "neox_author.testing"
_TINY = f"{_HERE}.templates.architecture"
_OFFERS = {
    "architecture": Component(
        "kit",
        f"{_TINY}.component:Architecture",
        planner=f"{_TINY}.plan:PLANNER",
        sections=(ConfigSection("model", f"{_TINY}.plan:Shape", "The size of the model."),),
    ),
    "engine": Component("kit", f"{__name__}:nothing", planner=f"{__name__}:ENGINE_PLANNER"),
    "objective": Component("kit", f"{_HERE}.trained:NextToken"),
    "optimizer": Component("kit", f"{_HERE}.trained:adam", Rate, zero_stages=(0, 1, 2, 3), state_numbers=(2, 0)),
    "lr schedule": Component("kit", f"{__name__}:flat"),
    "launcher": Component("kit", f"{__name__}:nothing"),
    "data backend": Component("kit", f"{__name__}:nothing"),
}
SEQ, VOCAB, LAYERS = 12, 32, 4
_USUAL: Mapping[str, object] = {
    "num_layers": LAYERS,
    "hidden_size": 16,
    "num_attention_heads": 4,
    "max_position_embeddings": SEQ,
    "no_weight_tying": True,
    "hidden_dropout": 0,
    "attention_dropout": 0,
}
"""What architectures with these keys are tried with."""


class _EnginePlanner(EnginePlanner):
    """Of an engine that has a pipeline and takes what any architecture asks for."""

    recomputes = False

    def sharding(self, config: Any) -> Sharding:
        return Sharding()

    def precision(self, config: Any) -> PrecisionPlan:
        return PrecisionPlan("fp32", None)

    def plan(self, config: Any, batch: Any, precision: Any, *, gradient_clipping: float) -> dict[str, Any]:
        return {}

    def memory(self, config: Any, plan: Any, held: Any, activations: int, state_numbers: Any) -> Any:
        return _Memory()


class _Memory:
    total = 0
    activations = 0

    def in_words(self) -> str:
        return "not known"


ENGINE_PLANNER = _EnginePlanner()


def nothing(*args: Any) -> None:
    """The target of a component that no check loads."""


def flat(shape: Any, settings: Any) -> Any:
    """A learning rate that stays."""
    return lambda step: shape.peak_lr


def completed(catalog: Catalog) -> Catalog:
    """The catalogue with the other installed plugins, and with the components of the kit."""
    registry, known = Registry(), {plugin.id for plugin, _ in catalog.registry.offered()}
    whole = load_plugins()
    for kind, definer in {**whole.registry.definers, **catalog.registry.definers}.items():
        registry.add_kind(definer, (catalog if kind in catalog.registry.kinds else whole).registry.kinds[kind])
    for plugin, offer in catalog.registry.offered():
        registry.add_offer(plugin, offer)
    for plugin, offer in whole.registry.offered():
        if plugin.id not in known:
            registry.add_offer(plugin, offer)
    for kind, component in _OFFERS.items() if KIT.id not in known else ():
        registry.add(Entry(kind, component, KIT))
    return Catalog(catalog.manager, registry, catalog.reports)


def resolve(catalog: Catalog, kind: str, name: str, folder: Path, ranks: int = 1, **keys: Any) -> Resolved:
    """What a config with one component of `kind`, and otherwise those of the kit, comes to on so many CPU ranks.

    catalog: a completed one. keys: of the config, with `_`; the usual ones of an architecture are there already.

    Raises ConfigError with what rules say against it.
    """
    component = catalog.find(kind, name).component
    sections = component.sections if kind == "architecture" else _OFFERS["architecture"].sections
    known = {each.name for section in sections for each in fields(section.settings)}
    config = {key: value for key, value in _USUAL.items() if key in known} | {
        **dict.fromkeys(("architecture", "engine", "objective", "launcher", "data_impl"), f"{KIT.id}:kit"),
        kind.replace(" ", "_"): name,
        "lr_decay_style": f"{KIT.id}:kit",
        "optimizer": {"type": f"{KIT.id}:kit", "params": {"lr": 0.01}},
        "monitors": [],
        "seq_length": SEQ,
        "padded_vocab_size": VOCAB,
        "data_path": str(folder / "data"),
        "train_micro_batch_size_per_gpu": 2,
        "train_iters": 8,
        "eval_iters": 0,
        "device": "cpu",
        "num_gpus": ranks,
        "seed": 5,
        **keys,
    }
    file = folder / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    return prepare_run([file], catalog=catalog, machine=Machine(0, 2), start=False, folder=folder)


def why_refused(error: ConfigError) -> str:
    """The first problem of a config."""
    lines = [each for each in error.message.splitlines()[1:] if " error: " in each]
    return lines[0].partition(" error: ")[2] if lines else error.message

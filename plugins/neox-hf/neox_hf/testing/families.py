"""The check of a model family: a small decoder to its names and back, and its config.json to our keys and back."""

from __future__ import annotations

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neox_author.testing.clauses import check_light, clauses, has, hold, not_applicable
from neox_author.testing.resolved import VOCAB, completed, resolve

from neox_core.contracts.architecture import ModelSize
from neox_core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neox_core.hooks.catalog import Catalog
    from neox_core.plan.resolve import Resolved

BACK = "keys() of config() describe the same model"


@clauses
def check_model_family(catalog: Catalog, name: str, **keys: Any) -> None:
    """Raises AssertionError with the clause of `neox_hf.api.ModelFamily` that does not hold.

    keys: of a config of a decoder that the family has, with `_`, beside small sizes, which are there.
    """
    entry = catalog.find("model family", name)
    check_light(entry.component.target)
    family = entry.load()()
    has(family, "a model family", "keys", "config", "weights", "ignores", "logits")
    with tempfile.TemporaryDirectory() as folder:
        ask = partial(resolve, completed(catalog), "architecture", "gpt", Path(folder))
        resolved = ask(**keys)
        try:
            written = family.config(resolved.plan.model, VOCAB)
        except ConfigError as error:
            if keys:
                raise
            not_applicable(BACK, f"it needs other keys than those of GPT-2: {error.message}")
            return
        hold(json.loads(json.dumps(written)) == written, "config() is what JSON holds without a change")
        hold(written.get("model_type") == entry.component.name, "the family is called as the `model_type` of config()")
        back = {key.replace("-", "_"): value for key, value in family.keys(written).items()}
        try:
            again = ask(**{**keys, **back})
        except ConfigError as error:
            raise AssertionError(f"{BACK}; a config with them is refused: {error.message}") from error
        differ = sorted(dict(_facts(resolved).items() ^ _facts(again).items()))
        hold(not differ, f"{BACK}; it differs in {', '.join(differ)}")
        size = resolved.size
        if not isinstance(size, ModelSize):
            raise AssertionError(f"with these keys the size of the model is known; {size.reason}")
        _check_weights(family, resolved.plan.model, size.shapes)
    try:
        family.keys({})
    except ConfigError:
        hold(True, "keys() raises ConfigError for a config.json that lacks what describes the model")
    else:
        hold(False, "keys() raises ConfigError for a config.json that lacks what describes the model")


def _facts(resolved: Resolved) -> dict[str, str]:
    """Of a plan, what a published model has too, as text."""
    model: Any = resolved.plan.model
    parts = {
        kind: f"{(part := getattr(model, kind)).name} {part.settings}" for kind in ("norm", "activation", "position")
    }
    numbers = "num_layers", "hidden_size", "num_attention_heads", "intermediate_size", "tie_embeddings"
    more = "parallel_residual", "attention_bias", "mlp_bias", "max_position_embeddings"
    parts["num_kv_heads"] = str(model.num_kv_heads or model.num_attention_heads)
    return parts | {each: str(getattr(model, each)) for each in (*numbers, *more)}


def _check_weights(family: Any, model: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
    import torch

    rules = [*family.weights(model)]
    ours = [each.ours for each in rules]
    lacks = sorted({*ours} ^ {*shapes})
    hold(not lacks and len(ours) == len({*ours}), f"weights() has one rule for each parameter; not so of {lacks[:1]}")
    theirs = [name for each in rules for name in each.theirs]
    hold(len(theirs) == len({*theirs}), "each of their tensors is in one rule")
    ignored = [name for name in theirs if family.ignores(name)]
    hold(not ignored, f"ignores() is False for a weight; it ignores {ignored[:1]}")
    for place, rule in enumerate(rules):
        draw = torch.Generator().manual_seed(place)
        weight = torch.randn(shapes[rule.ours], generator=draw)
        parts = rule.split(weight.clone())
        hold(len(parts) == len(rule.theirs), f"split gives a tensor for each of `theirs`; of {rule.ours} it does not")
        hold(
            torch.equal(rule.join(list(parts)), weight),
            f"join is the inverse of split, bit for bit; {rule.ours} is not",
        )

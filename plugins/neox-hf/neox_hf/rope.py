"""Rotary positions as config.json has them, and as ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from neox_core.errors import ConfigError

if TYPE_CHECKING:
    from neox_gpt.api import GPTPlan

FACTOR = {"factor": "rotary-scaling-factor"}
LENGTHS = {**FACTOR, "original_max_position_embeddings": "rotary-original-positions"}
SCALINGS: dict[str, dict[str, str]] = {
    "default": {},
    "linear": FACTOR,
    "dynamic": LENGTHS,
    "llama3": {
        **LENGTHS,
        "low_freq_factor": "rotary-low-freq-factor",
        "high_freq_factor": "rotary-high-freq-factor",
    },
    "yarn": {
        **LENGTHS,
        "beta_fast": "rotary-beta-fast",
        "beta_slow": "rotary-beta-slow",
        "attention_factor": "rotary-attention-factor",
        "mscale": "rotary-mscale",
        "mscale_all_dim": "rotary-mscale-all-dim",
        "truncate": "rotary-truncate",
    },
}
"""What each of transformers' scalings reads, and our keys."""
PLAIN = ("rope_type", "type", "rope_theta", "partial_rotary_factor")


def rope_keys(config: Mapping[str, Any], share: float, of_layers: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Our keys of rotary positions, from either spelling of transformers.

    share: the family's default of the part that is turned. of_layers: in place of `rope_parameters`, those of a kind of
    layers. Raises ConfigError for a scaling that neox does not have.
    """
    older = config.get("rope_scaling") or {} if of_layers is None else {}
    written = {**((config.get("rope_parameters") or {}) if of_layers is None else of_layers), **older}
    bases = [config.get(name) for name in ("rope_theta", "rotary_emb_base")]
    shares = [config.get(name) for name in ("partial_rotary_factor", "rotary_pct")]
    kind = written.get("rope_type") or written.get("type") or "default"
    unknown = sorted(set(written) - set(PLAIN) - set(SCALINGS.get(kind, ())))
    if kind not in SCALINGS or unknown:
        what = f"{kind!r}" if kind not in SCALINGS else f"{unknown[0]} of {kind!r}"
        raise ConfigError(f"config.json: scaled rotary positions {what}, which this version of neox does not have")
    keys: dict[str, Any] = {
        "pos-emb": "rotary",
        "rotary-pct": float(_first(written.get("partial_rotary_factor"), *shares, share)),
        "rotary-emb-base": float(_first(written.get("rope_theta"), *bases, 10000.0)),
    }
    if kind == "default":
        return keys
    keys["rotary-scaling"] = kind
    longest = config.get("max_position_embeddings")
    if kind == "dynamic" and longest:  # there it is the original length
        written["original_max_position_embeddings"] = longest
        keys["max-position-embeddings"] = int(longest * float(written["factor"]))
    if kind == "yarn" and written.get("factor") is None and longest:
        written["factor"] = longest / written["original_max_position_embeddings"]
    for theirs, ours in SCALINGS[kind].items():
        if written.get(theirs) is not None:
            keys[ours] = written[theirs]
    return keys


def rope_config(model: GPTPlan, position: Mapping[str, Any]) -> dict[str, Any]:
    """What config.json has of rotary positions, in the spelling that all versions of transformers read."""
    config: dict[str, Any] = {"rope_theta": position["rotary_emb_base"]}
    kind = position.get("rotary_scaling", "none")
    if kind == "none":
        return config
    found = {theirs: position.get(ours.replace("-", "_")) for theirs, ours in SCALINGS[kind].items()}
    config["rope_scaling"] = {"rope_type": kind, **{key: value for key, value in found.items() if value is not None}}
    if kind == "dynamic":
        config["max_position_embeddings"] = config["rope_scaling"].pop("original_max_position_embeddings")
    return config


def _first(*values: Any) -> Any:
    return next(each for each in values if each is not None)

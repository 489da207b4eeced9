"""What the settings of rotary positions must be, given each other."""

from collections.abc import Iterator
from typing import Any

from neox_core.api import Problem

LENGTHS = ("rotary_scaling_factor", "rotary_original_positions")
READ: dict[str, tuple[str, ...]] = {
    "none": (),
    "linear": LENGTHS[:1],
    "dynamic": LENGTHS,
    "llama3": (*LENGTHS, "rotary_low_freq_factor", "rotary_high_freq_factor"),
    "yarn": (
        *LENGTHS,
        "rotary_beta_fast",
        "rotary_beta_slow",
        "rotary_attention_factor",
        "rotary_mscale",
        "rotary_mscale_all_dim",
        "rotary_truncate",
    ),
}
"""The settings that each scaling reads."""


def scaling_is_whole(config: Any, settings: Any, turned: int) -> Iterator[Problem]:
    """A scaling has the settings that it needs, and no others."""
    scaling = settings.rotary_scaling
    for key in dict.fromkeys(key for keys in READ.values() for key in keys):
        if config.is_set(key) and key not in READ[scaling]:
            yield Problem(f"does nothing with rotary-scaling {scaling}", key, "remove it")
    for key in READ[scaling]:
        if key in LENGTHS and getattr(settings, key) is None:
            yield Problem(f"is required for rotary-scaling {scaling}", key)
    if scaling == "llama3" and settings.rotary_high_freq_factor <= settings.rotary_low_freq_factor:
        message = f"{settings.rotary_high_freq_factor} is not above rotary-low-freq-factor"
        yield Problem(message, "rotary_high_freq_factor")
    if scaling == "yarn" and settings.rotary_beta_fast <= settings.rotary_beta_slow:
        yield Problem(f"{settings.rotary_beta_fast} is not above rotary-beta-slow", "rotary_beta_fast")
    if (settings.rotary_mscale is None) != (settings.rotary_mscale_all_dim is None):
        yield Problem("does nothing without the other: set rotary-mscale and rotary-mscale-all-dim", "rotary_mscale")
    if settings.rotary_mscale is not None and settings.rotary_attention_factor is not None:
        yield Problem("does nothing beside rotary-attention-factor", "rotary_mscale", "remove it")
    if scaling == "dynamic" and turned == 2:
        yield Problem("needs more than two turned dimensions of a head", "rotary_scaling", "a larger rotary-pct")
    if settings.rotary_emb_base_in_windows is not None and config.value("sliding_window_width") is None:
        yield Problem("does nothing: no layer has a window", "rotary_emb_base_in_windows", "set sliding-window-width")

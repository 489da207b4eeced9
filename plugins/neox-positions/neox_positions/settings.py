"""Settings of the positions; each is read by its own position only."""

from typing import Literal

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting


@frozen
class RotarySettings:
    rotary_pct: float = setting(
        1.0,
        help="Share of each head's dimensions that is rotated; the others carry no position.",
        check=v.and_(v.gt(0), v.le(1)),
        origin="gpt-neox",
    )
    rotary_emb_base: float = setting(
        10000.0,
        help="Base of the wavelengths: the slowest is 2 pi times about this many tokens.",
        check=v.gt(1),
        origin="gpt-neox",
    )
    rotary_emb_base_in_windows: float | None = setting(
        None,
        help="The base in layers with a window, where rotary-scaling does not act. Default: as in the others.",
        check=v.optional(v.gt(1)),
    )
    rotary_scaling: Literal["none", "linear", "dynamic", "llama3", "yarn"] = setting(
        "none",
        help="How wavelengths grow for sequences longer than those that the model was first trained on.",
    )
    rotary_scaling_factor: float | None = setting(
        None,
        help="How many times longer than rotary-original-positions sequences may be.",
        check=v.optional(v.ge(1)),
    )
    rotary_original_positions: int | None = setting(
        None,
        help="Longest sequence that the model was first trained on; for dynamic, llama3 and yarn.",
        unit="tokens",
        check=v.optional(v.ge(1)),
    )
    rotary_low_freq_factor: float = setting(
        1.0,
        help="llama3 divides frequencies that turn fewer times in rotary-original-positions by the factor.",
        check=v.gt(0),
    )
    rotary_high_freq_factor: float = setting(
        4.0,
        help="llama3 leaves frequencies as they are that turn more times in rotary-original-positions.",
        check=v.gt(0),
    )
    rotary_beta_fast: float = setting(
        32.0,
        help="yarn leaves frequencies as they are that turn more times in rotary-original-positions.",
        check=v.gt(0),
    )
    rotary_beta_slow: float = setting(
        1.0,
        help="yarn divides frequencies that turn fewer times in rotary-original-positions by the factor.",
        check=v.gt(0),
    )
    rotary_attention_factor: float | None = setting(
        None,
        help="What yarn multiplies cosines and sines by. Default: from rotary-mscale, or 0.1 ln(factor) + 1.",
        check=v.optional(v.gt(0)),
    )
    rotary_mscale: float | None = setting(
        None,
        help="With rotary-mscale-all-dim: yarn's attention factor is the quotient of 0.1 x each x ln(factor) + 1.",
        check=v.optional(v.gt(0)),
    )
    rotary_mscale_all_dim: float | None = setting(None, help="See rotary-mscale.", check=v.optional(v.gt(0)))
    rotary_truncate: bool = setting(True, help="Round the ends of yarn's ramp outwards to whole frequencies.")


@frozen
class RelativeSettings:
    rpe_num_buckets: int = setting(
        32,
        help="Buckets of distances in the table of relative biases.",
        check=v.ge(2),
        origin="gpt-neox",
    )
    rpe_max_distance: int = setting(
        128,
        help="Distance from which on all tokens share the last bucket; more than half the buckets.",
        check=v.ge(2),
        unit="tokens",
        origin="gpt-neox",
    )

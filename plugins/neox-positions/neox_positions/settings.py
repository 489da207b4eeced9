"""Settings of the positions; each is read by its own position only."""

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

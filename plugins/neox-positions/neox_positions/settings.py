"""Settings of the rotary position."""

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

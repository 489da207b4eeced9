"""The settings of Muon."""

from typing import Literal

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting

_RATES = v.deep_iterable(v.and_(v.ge(0), v.lt(1)))


@frozen
class MuonSettings:
    lr: float = setting(1e-3, help="Peak learning rate, of matrices and of the rest.", check=v.ge(0))
    momentum: float = setting(0.95, help="Decay rate of a matrix's momentum.", check=v.and_(v.ge(0), v.lt(1)))
    nesterov: bool = setting(True, help="Look ahead: orthogonalise the mean of gradient and momentum.")
    ns_steps: int = setting(5, help="Newton-Schulz iterations.", check=v.and_(v.ge(1), v.lt(100)))
    adjust_lr: Literal["original", "match_rms_adamw"] = setting(
        "match_rms_adamw",
        help="Scale of a matrix's step. original: sqrt(max(1, rows / columns)); match_rms_adamw: 0.2 sqrt(max(rows,"
        " columns)), about the size of AdamW's, so that one lr does for both.",
    )
    betas: tuple[float, float] = setting(
        (0.9, 0.95), help="Decay rates of AdamW's moments, for parameters that are not matrices.", check=_RATES
    )
    eps: float = setting(1e-8, help="Keeps the denominator of AdamW's update away from zero.", check=v.gt(0))
    weight_decay: float = setting(
        0.1, help="Decoupled decay, except for parameters that are declared to have none.", check=v.ge(0)
    )

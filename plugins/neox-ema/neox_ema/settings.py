"""The settings of the average of weights."""

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting


@frozen
class EmaBlock:
    """The exponential moving average of the weights."""

    enabled: bool = setting(False, help="Keep an average of the weights, in fp32.")
    decay: float = setting(
        0.999,
        help="After each update the average becomes decay x average + (1 - decay) x weights.",
        check=v.and_(v.gt(0), v.lt(1)),
    )


@frozen
class EmaSettings:
    ema: EmaBlock = setting(EmaBlock(), help="Block of the average of weights.")

    @property
    def enabled(self) -> bool:
        """Whether the config asks for it."""
        return self.ema.enabled

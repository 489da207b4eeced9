"""Stand for the classes that DeepSpeed's checkpoints name, and write them under its names."""

import pickle
from typing import Any


class DynamicLossScaler:
    """Stands for DeepSpeed's class of this name."""

    def __init__(self) -> None:
        vars(self).update(cur_scale=1024.0, cur_iter=7, last_overflow_iter=3, cur_hysteresis=2, dynamic=True)


class Fragment:
    """Stands for DeepSpeed's fragment_address: where a parameter lies in a flat vector."""

    def __init__(self) -> None:
        vars(self).update(numel=1, start=0)


class ZeroStageEnum:
    """Stands for DeepSpeed's class of this name."""

    def __reduce__(self) -> Any:
        return ZeroStageEnum, (1,)


FOREIGN = {
    DynamicLossScaler: b"cdeepspeed.runtime.fp16.loss_scaler\nDynamicLossScaler\n",
    Fragment: b"cdeepspeed.utils.tensor_fragment\nfragment_address\n",
    ZeroStageEnum: b"cdeepspeed.runtime.zero.config\nZeroStageEnum\n",
}


class ForeignPickler(pickle._Pickler):  # type: ignore[name-defined]  # the one in Python, whose names can be changed
    """Names DeepSpeed's classes, which need not be there."""

    def save_global(self, obj: Any, name: str | None = None) -> None:
        if isinstance(obj, type) and obj in FOREIGN:
            self.write(FOREIGN[obj])
            self.memoize(obj)
        else:
            super().save_global(obj, name)

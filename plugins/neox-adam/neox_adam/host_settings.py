"""Settings under optimizer.params of the implementations on the host."""

from attrs import frozen

from neox_adam.settings import adam_w_mode
from neox_core.api import MomentSettings


@frozen
class CPUTorchAdamSettings(MomentSettings):
    pass


@frozen
class CPUAdamSettings(CPUTorchAdamSettings):
    adam_w_mode: bool = adam_w_mode()

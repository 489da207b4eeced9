"""What can be set of the curves of lr-decay-style."""

from typing import Literal

from attrs import frozen

from neox_core.api import setting


@frozen
class CurveSettings:
    lr_decay_version: Literal[1, 2] = setting(
        2,
        help="The curve of GPT-NeoX 2, which ends at lr-decay-iters, or with 1 that of older GPT-NeoX, in which a run "
        "with a warm-up never reaches its end. 1 continues a run that began so.",
    )

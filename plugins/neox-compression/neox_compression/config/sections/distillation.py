"""The block `distillation`."""

from __future__ import annotations

from attrs import frozen
from attrs import validators as v

from neox_core.api import setting


@frozen
class DistillationBlock:
    """A loss that follows a teacher."""

    teacher: str | None = setting(
        None,
        help="Folder of the teacher's checkpoint. Default: that of compression_training.layer_reduction.",
        file=True,
    )
    weight: float = setting(
        0.5,
        help="Share of the divergence from the teacher in the loss; the rest is the cross-entropy.",
        unit="fraction",
        check=v.and_(v.gt(0), v.le(1)),
    )
    temperature: float = setting(
        1.0,
        help="What the logits of both are divided by; the divergence is multiplied by its square (arXiv:1503.02531).",
        check=v.and_(v.gt(0), v.le(100)),
    )


@frozen
class DistillationSettings:
    distillation: DistillationBlock = setting(DistillationBlock(), help="Block of the objective distillation.")

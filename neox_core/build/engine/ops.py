"""DeepSpeed's compiled ops, for components that wrap one: whoever else needs DeepSpeed asks this package for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def cpu_adam(params: Iterable[dict[str, Any]], **options: Any) -> torch.optim.Optimizer:
    """DeepSpeed's vectorised Adam on the host, with its options. The first use on a machine compiles it.

    Raises RuntimeError where there is no compiler.
    """
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    return DeepSpeedCPUAdam(params, **options)  # type: ignore[no-any-return]

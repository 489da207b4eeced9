"""DeepSpeed's compiled ops, for components that wrap one: whoever else needs DeepSpeed asks this package for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from neox_core.errors import ConfigError
from neox_deepspeed.patches import bound_waits, skip_debug_symbols


def cpu_adam(params: Iterable[dict[str, Any]], **options: Any) -> torch.optim.Optimizer:
    """DeepSpeed's vectorised Adam on the host, with its options. The first use on a machine compiles it.

    Raises RuntimeError where there is no compiler.
    """
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    from deepspeed.ops.op_builder import CPUAdamBuilder

    skip_debug_symbols(CPUAdamBuilder)
    bound_waits()
    return DeepSpeedCPUAdam(params, **options)


def async_io() -> Any:
    """DeepSpeed's compiled reader and writer of files. The first use on a machine compiles it.

    Raises ConfigError where it cannot be compiled.
    """
    from deepspeed.ops.op_builder import AsyncIOBuilder

    skip_debug_symbols(AsyncIOBuilder)
    bound_waits()
    try:
        return AsyncIOBuilder().load(verbose=False)
    except (RuntimeError, OSError) as error:
        raise ConfigError(
            f"DeepSpeed's op async_io cannot be compiled: {error}", hint="install libaio-dev, g++ and ninja"
        ) from error

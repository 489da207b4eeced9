"""Offers the 1-bit family of optimizers."""

from collections.abc import Iterator
from typing import Any

from neox_core.api import Component, Problem, hookimpl
from neox_onebit.rules import RULES
from neox_onebit.settings import OneBitAdamSettings, OneBitLambSettings, ZeroOneAdamSettings

OPS = (
    ("onebit_compress", "neox_onebit.passes:compress"),
    ("onebit_decompress", "neox_onebit.passes:decompress"),
)


@hookimpl
def neox_optimizers() -> list[Component]:
    return [
        Component(
            "OneBitAdam",
            "neox_onebit.adam:one_bit_adam",
            OneBitAdamSettings,
            summary="Adam whose momenta travel as signs after a warm-up (arXiv:2102.02888)",
            whole_parameters=True,
            precisions=("fp16",),
            state_numbers=(3.0, 0.0),
            scheduler="WarmupDecayLR",
            ops=OPS,
        ),
        Component(
            "ZeroOneAdam",
            "neox_onebit.zeroone:zero_one_adam",
            ZeroOneAdamSettings,
            summary="0/1 Adam: variances and exchanges ever more rarely, momenta as signs (arXiv:2202.06009)",
            whole_parameters=True,
            precisions=("fp16",),
            state_numbers=(5.0, 0.0),
            ops=OPS,
        ),
        Component(
            "OneBitLamb",
            "neox_onebit.lamb:one_bit_lamb",
            OneBitLambSettings,
            summary="LAMB whose momenta travel as signs after a warm-up (arXiv:2104.06069)",
            whole_parameters=True,
            precisions=("fp16",),
            state_numbers=(4.0, 0.0),
            ops=OPS,
        ),
    ]


@hookimpl
def neox_check_config(config: Any, cluster: Any) -> Iterator[Problem]:
    (optimizer,) = config.components("optimizer")
    if optimizer.entry.plugin.id == "neox-onebit":
        for rule in RULES:
            yield from rule(config, cluster, optimizer.entry.component.name, optimizer.settings)

"""Offers the 1-bit family of optimizers."""

from collections.abc import Iterator
from typing import Any

from neox_core.api import Component, Problem, hookimpl
from neox_onebit.rules import RULES

OPS = (
    ("onebit_compress", "neox_onebit.passes:compress"),
    ("onebit_decompress", "neox_onebit.passes:decompress"),
)


def _offer(
    name: str, target: str, settings: str, numbers: float, summary: str, scheduler: str | None = None
) -> Component:
    """An optimizer of this package.

    numbers: of its state, for each element of a parameter
    """
    return Component(
        name,
        f"neox_onebit.{target}",
        f"neox_onebit.settings:{settings}",
        summary=summary,
        whole_parameters=True,
        precisions=("fp16",),
        state_numbers=(numbers, 0.0),
        scheduler=scheduler,
        ops=OPS,
    )


@hookimpl
def neox_optimizers() -> list[Component]:
    adam = "Adam whose momenta travel as signs after a warm-up (arXiv:2102.02888)"
    zero_one = "0/1 Adam: variances and exchanges ever more rarely, momenta as signs (arXiv:2202.06009)"
    lamb = "LAMB whose momenta travel as signs after a warm-up (arXiv:2104.06069)"
    return [
        _offer("OneBitAdam", "adam:one_bit_adam", "OneBitAdamSettings", 3.0, adam, scheduler="WarmupDecayLR"),
        _offer("ZeroOneAdam", "zeroone:zero_one_adam", "ZeroOneAdamSettings", 5.0, zero_one),
        _offer("OneBitLamb", "lamb:one_bit_lamb", "OneBitLambSettings", 4.0, lamb),
    ]


@hookimpl
def neox_check_config(config: Any, cluster: Any) -> Iterator[Problem]:
    (optimizer,) = config.components("optimizer")
    if optimizer.entry.plugin.id == "neox-onebit":
        for rule in RULES:
            yield from rule(config, cluster, optimizer.entry.component.name, optimizer.settings)

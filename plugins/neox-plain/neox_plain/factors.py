"""Factors of single parameters: of their learning rate, of their gradient, and how often they count in its norm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from neox_core.errors import ConfigError
from neox_core.untrusted import short

if TYPE_CHECKING:
    from neox_core.parallel.groups import Groups

PATTERNS = ("gradient_norm_counts", "lr_scales")


def factor_of(name: str, factors: Sequence[tuple[str, float]]) -> float:
    """The factor of the first pattern that a parameter's name matches; 1 where none does."""
    return next((float(factor) for pattern, factor in factors if fnmatchcase(name, pattern)), 1.0)


def scale_gradients(parameters: Iterable[nn.Parameter], factor: float) -> None:
    """Have every later backward pass multiply its gradients by `factor`, before they are added up or sent."""

    def scaled(gradient: Tensor) -> Tensor:
        return gradient * factor

    for each in parameters:
        each.register_hook(scaled)


def split_groups(optimizer: torch.optim.Optimizer, model: nn.Module, engine: Mapping[str, Any]) -> None:
    """Put parameters with a factor of the learning rate into groups with `lr_scale`, before an engine has the groups.

    engine: `plan.engine`.
    """
    scales = engine.get("lr_scales", [])
    names = {id(each): name for name, each in model.named_parameters()}
    for group in list(optimizer.param_groups) if scales else ():
        by_factor: dict[float, list[nn.Parameter]] = {}
        for each in group["params"]:
            by_factor.setdefault(factor_of(names.get(id(each), ""), scales), []).append(each)
        options = {name: value for name, value in group.items() if name != "params"}
        for place, (factor, mine) in enumerate(sorted(by_factor.items(), key=lambda pair: pair[0] != 1.0)):
            own = {"params": mine, "lr_scale": factor * options.get("lr_scale", 1.0)}
            if place == 0:
                group.update(own)
            else:
                optimizer.add_param_group({**options, **own})


def require_matches(names: Iterable[str], engine: Mapping[str, Any], groups: Groups, device: torch.device) -> None:
    """Raises ConfigError for a pattern that no parameter of the model matches. Collective over stages.

    names: of this rank's parameters. engine: `plan.engine`.
    """
    asked = [(key, pattern) for key in PATTERNS for pattern, _ in engine.get(key, [])]
    if not asked:
        return
    held = list(names)
    counts = [sum(fnmatchcase(name, pattern) for name in held) for _, pattern in asked]
    found = torch.tensor(counts, device=device)
    if groups.pipe is not None and groups.pipe_size > 1:
        dist.all_reduce(found, group=groups.pipe)
    for (key, pattern), count in zip(asked, found.tolist(), strict=True):
        if not count:
            raise ConfigError(
                f"{key.replace('_', '-')}: no parameter of the model has a name like {short(pattern)}",
                hint=f"a name is such as {short(held[-1])}",
            )


def plain_options(group: dict[str, Any]) -> dict[str, Any]:
    """A parameter group without its parameters."""
    return {name: value for name, value in group.items() if name != "params"}

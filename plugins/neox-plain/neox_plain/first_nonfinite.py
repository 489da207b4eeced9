"""Which part of a model is the first whose result is not finite, in a step that is repeated to find it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


@contextmanager
def looking(model: nn.Module) -> Iterator[list[tuple[float, str]]]:
    """While passes go through `model`: the list gets the first part that gives a number that is not finite: its place
    among the calls and results of modules, which tensor-parallel ranks have alike, and what it is, in words.

    Each call of a module waits for the device. Compiled modules run as they are written meanwhile.
    """
    found: list[tuple[float, str]] = []
    places = itertools.count()
    names = {module: name for name, module in model.named_modules()}
    above = {child: module for module in names for child in module.children()}

    def before(name: str, module: nn.Module, given: Any, named: Any) -> None:
        place = next(places)
        if not found and not _finite((given, named)):  # what no module has given, a function or the module around has
            around = above.get(module, model)
            found.append((place, f"{_described(model, names[around])} gives to {name}"))

    def after(name: str, module: nn.Module, given: Any, made: Any) -> None:
        place = next(places)
        if not found and not _finite(made):
            own = all(bool(each.isfinite().all()) for each in module.parameters())
            weights = "" if own else ", whose weights are not finite"
            found.append((place, f"{_described(model, name)} gives{weights}"))

    hooks = [
        hook
        for module, name in names.items()
        if name
        for hook in (
            module.register_forward_pre_hook(partial(before, name), with_kwargs=True),
            module.register_forward_hook(partial(after, name)),
        )
    ]
    try:
        with torch.compiler.set_stance("force_eager"):
            yield found
    finally:
        for hook in hooks:
            hook.remove()


def first_of(found: list[tuple[float, str]], group: dist.ProcessGroup | None) -> str:
    """In words, what tensor-parallel ranks have found first; the others have it of a sum over the ranks. Collective.

    found: as of `looking`. group: those ranks; None: this one alone.
    """
    told = [found]
    if group is not None:
        told = [[] for _ in range(dist.get_world_size(group))]
        dist.all_gather_object(told, found, group=group)
    return min((each[0] for each in told if each), default=(0, ""))[1]


def _finite(values: Any) -> bool:
    tensors = (each for each in tree_leaves(values) if isinstance(each, Tensor) and each.is_floating_point())
    return all(bool(each.isfinite().all()) for each in tensors)


def _described(model: nn.Module, name: str) -> str:
    """A module by its name, and the component that it is of, where a module around it knows."""
    if not name:
        return "the model"
    words, modules = name.split("."), dict(model.named_modules())  # a stage names its modules as the whole model does
    for place in range(len(words)):
        owner_of = getattr(modules.get(".".join(words[:place])), "owner_of", None)
        if owner_of is not None and (owner := owner_of(".".join(words[place:]))):
            return f"{name} ({owner})"
    return name

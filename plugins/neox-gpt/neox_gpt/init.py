"""Draws initial weights from (seed, parameter name), so that they do not depend on layout, order or device.

A parameter of two or more dimensions is drawn; one of fewer (a bias, a gain), or that its module names in
`starts_as_made`, stays as its module made it. One that `stacks` names is a stack of matrices, each drawn by itself.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from neox_core.errors import ConfigError
from neox_core.parallel.tensor import Cut
from neox_gpt.shape import ModelShape

Fill = Callable[[Tensor, torch.Generator], object]


def init_parameters(
    model: nn.Module, shape: ModelShape, seed: int, method: str, output_method: str, std: float
) -> None:
    """Draw every weight of `model` in place; `output_method` for those that write to the residual stream.

    Raises ConfigError for a method of another name.
    """
    fill = _fill(_methods(shape, std), method)
    output_fill = _fill(_methods(shape, std), output_method)
    for prefix, module in model.named_modules():
        chosen = output_fill if getattr(module, "residual_output", False) else fill
        for name, parameter in module.named_parameters(prefix, recurse=False):
            own = name.removeprefix(f"{prefix}.")
            if parameter.dim() >= 2 and own not in getattr(module, "starts_as_made", ()):
                cut: Cut | None = getattr(module, "cuts", {}).get(own)
                shape_of_whole = tuple(parameter.shape) if cut is None else cut.whole_shape(tuple(parameter.shape))
                full = torch.empty(shape_of_whole, dtype=torch.float32)
                random = generator(seed, name)
                stacked = own in getattr(module, "stacks", ())
                for matrix in [each.flatten(0, -2) for each in full] if stacked else [full]:
                    chosen(matrix, random)
                with torch.no_grad():
                    parameter.copy_(full if cut is None else cut.of(full))


def generator(seed: int, name: str) -> torch.Generator:
    """The random numbers of one parameter."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))


def _methods(shape: ModelShape, std: float) -> Mapping[str, Fill]:
    """GPT-NeoX's methods. small_init: arXiv:1910.05895; wang_init: the output layers of mesh-transformer-jax.

    orthogonal: arXiv:1312.6120, with a gain of sqrt(2), in scaled_orthogonal of sqrt(2 / layers). GPT-NeoX means so,
    but its orthogonal divides by zero: at ea7aefd it hands `use_mup` over as the number of layers.
    """

    def normal(deviation: float) -> Fill:
        return lambda tensor, random: tensor.normal_(0.0, deviation, generator=random)

    def orthogonal(layers: int) -> Fill:
        return lambda tensor, random: nn.init.orthogonal_(tensor, math.sqrt(2 / layers), generator=random)

    return {
        "normal": normal(std),
        "scaled_normal": normal(std / math.sqrt(2 * shape.num_layers)),
        "single_residual_scaled_normal": normal(std / math.sqrt(shape.num_layers)),
        "small_init": normal(math.sqrt(2 / (5 * shape.hidden_size))),
        "wang_init": normal(2 / (shape.num_layers * math.sqrt(shape.hidden_size))),
        "xavier_uniform": lambda tensor, random: nn.init.xavier_uniform_(tensor, generator=random),
        "xavier_normal": lambda tensor, random: nn.init.xavier_normal_(tensor, generator=random),
        "orthogonal": orthogonal(1),
        "scaled_orthogonal": orthogonal(shape.num_layers),
    }


def _fill(methods: Mapping[str, Fill], name: str) -> Fill:
    if name not in methods:
        raise ConfigError(f"no init method {name!r}", hint=f"one of {', '.join(sorted(methods))}")
    return methods[name]

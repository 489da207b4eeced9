"""The largest eigenvalue of a symmetric matrix of which only products with vectors are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

Vector = list[Tensor]
"""A vector in pieces of any shapes."""


@frozen
class Found:
    """value: of the largest size, with its sign. iterations: that were made."""

    value: float
    iterations: int


def largest_eigenvalue(
    product: Callable[[Vector], Vector],
    start: Vector,
    dot: Callable[[Vector, Vector], Tensor],
    *,
    tol: float,
    max_iter: int,
    stability: float = 0.0,
) -> Found:
    """Power iteration, as DeepSpeed 0.19.6 ends it: when the value changes by less than `tol` of itself.

    product: of the matrix with a vector. start: any vector. dot: of two vectors. stability: added to the length of a
    vector before the vector is divided by it. What is not finite in a product counts as 0. Waits for the device.
    """
    vector = _normalized(start, dot, stability)
    value, before = 1.0, 0.0
    for iteration in range(max_iter):
        if value == 0 or abs((value - before) / value) < tol:
            return Found(value, iteration)
        before = value
        found = [torch.nan_to_num(each, nan=0.0, posinf=0.0, neginf=0.0) for each in product(vector)]
        value = float(dot(found, vector))
        vector = _normalized(found, dot, stability)
    return Found(value, max_iter)


def difference_product(gradient: Callable[[Vector], Vector], point: Vector) -> Callable[[Vector], Vector]:
    """The product of the Hessian at `point` with a vector of length 1, by a central difference of gradients.

    gradient: at a point. The step balances the error of the difference and that of rounding: the cube root of the
    distance between numbers of the point's dtype (LeCun, Simard and Pearlmutter 1993 find eigenvalues so).
    """
    step: Any = torch.finfo(point[0].dtype).eps ** (1 / 3)

    def product(vector: Vector) -> Vector:
        ahead = gradient([at + step * to for at, to in zip(point, vector, strict=True)])
        behind = gradient([at - step * to for at, to in zip(point, vector, strict=True)])
        return [(one - other) / (2 * step) for one, other in zip(ahead, behind, strict=True)]

    return product


def _normalized(vector: Vector, dot: Callable[[Vector, Vector], Tensor], stability: float) -> Vector:
    length = dot(vector, vector).sqrt() + stability
    return [torch.nan_to_num(each / length, nan=0.0, posinf=0.0, neginf=0.0) for each in vector]

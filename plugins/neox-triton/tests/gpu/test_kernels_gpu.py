"""Every kernel compiled and run on the GPU that is here: right on small and large shapes, and the same bits twice."""

from typing import Any

import pytest
import torch
from neox_author.api import installed_ops
from neox_kernels.api import TOLERANCE, error_of
from neox_triton.plugin import KERNELS, target_of

from neox_core.hooks.component import load_path
from neox_core.hooks.loader import load_plugins

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
GPU = torch.device("cuda")


@pytest.fixture(scope="module")
def references() -> dict[str, Any]:
    return {op.name: load_path(op.reference) for op in installed_ops(load_plugins().registry)}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("op", KERNELS)
def test_equals_the_reference(op: str, dtype: torch.dtype, references: dict[str, Any]) -> None:
    kernel = load_path(target_of(op))
    for arguments in kernel.examples(dtype, GPU, large=False):
        assert error_of(kernel, references[op], arguments) <= TOLERANCE[dtype]


@pytest.mark.parametrize("op", KERNELS)
def test_the_same_bits_each_time(op: str) -> None:
    kernel = load_path(target_of(op))
    for arguments in kernel.examples(torch.bfloat16, GPU, large=True):
        first, second = (_bits(kernel, arguments) for _ in range(2))
        assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def _bits(kernel: Any, arguments: tuple[Any, ...]) -> list[torch.Tensor]:
    own = [_copied(each) for each in arguments]  # some ops work in place
    returned = kernel(*own)
    results = [returned] if isinstance(returned, torch.Tensor) else list(returned)
    inputs = [each for each in own if isinstance(each, torch.Tensor) and each.requires_grad]
    ones = [torch.ones_like(each) for each in results]
    return [*results, *(torch.autograd.grad(results, inputs, ones) if inputs else ())]


def _copied(value: Any) -> Any:
    return value.detach().clone().requires_grad_(value.requires_grad) if isinstance(value, torch.Tensor) else value

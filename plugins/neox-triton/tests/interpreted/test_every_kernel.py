"""What holds for the kernel of every op."""

import pytest
import torch
from neox_author.api import installed_ops
from neox_kernels.api import TOLERANCE, compare
from neox_kernels.form import results_of
from neox_triton.plugin import KERNELS, target_of
from torch import Tensor

from neox_core.hooks.component import load_path
from neox_core.hooks.loader import load_plugins

CPU = torch.device("cpu")
REFERENCES = {each.name: each.reference for each in installed_ops(load_plugins().registry)}
DIFFERENTIABLE = sorted(
    set(KERNELS) - {"block_sparse_attention", "adam_step", "sm3_step", "onebit_compress", "onebit_decompress"}
)


@pytest.mark.parametrize("op", sorted(set(KERNELS) - {"block_sparse_attention"}))  # whose examples are long
def test_keeps_the_contract(op: str) -> None:
    """As `neox kernels check` tests it, among others with arguments that lie apart in memory."""
    kernel = load_path(target_of(op))
    for arguments in kernel.examples(torch.float32, CPU, large=False):
        verdict = compare(kernel, load_path(REFERENCES[op]), arguments)
        assert verdict.faults == ()
        assert verdict.error <= TOLERANCE[torch.float32], verdict.where


@pytest.mark.parametrize("op", DIFFERENTIABLE)
def test_a_second_derivative_is_refused(op: str) -> None:
    """Where it would count as 0: no kernel computes the gradient of a gradient."""
    kernel = load_path(target_of(op))
    arguments = next(iter(kernel.examples(torch.float32, CPU, large=False)))
    inputs = [each for each in arguments if isinstance(each, Tensor) and each.requires_grad]
    total = sum(each.square().sum() for each in results_of(kernel(*arguments)))
    (first, *_) = torch.autograd.grad(total, inputs, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        (first.square().sum() + inputs[0].sum()).backward()

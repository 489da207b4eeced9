"""What a GPU chooses for itself, and that it trains as the references do."""

import pytest
import torch
from neox_author.api import installed_ops
from neox_kernels.api import architecture_of, choose
from neox_kernels.commands import _row

from neox_core.hooks.loader import load_plugins
from neox_core.plan.runfile import ComponentRef, KernelPlan

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")


def test_every_op_has_a_choice_and_a_kernel_that_was_asked_for_is_taken() -> None:
    registry, device = load_plugins().registry, torch.device("cuda")
    for op in installed_ops(registry):
        offers = tuple(ComponentRef(**each) for each in _row(op, registry)["offers"])
        for offer in offers:
            kernel = offer.load()[0]
            shape = tuple(next(iter(kernel.examples(torch.bfloat16, torch.device("meta"), large=True)))[0].shape)
            asked = choose(KernelPlan(op.name, "fused", "key", (offer,)), shape, torch.bfloat16, device)
            assert asked.kernel is kernel
            alone = choose(KernelPlan(op.name, "auto", "", (offer,)), shape, torch.bfloat16, device)
            assert (alone.kernel is kernel) == (architecture_of(device) in kernel.tested)

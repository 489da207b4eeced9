"""Packing by hand, and the compiled loops next to torch's operations."""

import pytest
import torch
from neox_onebit import passes
from neox_onebit.passes import move, pack, unpack


@pytest.fixture(params=["compiled", "torch"], autouse=True)
def form(request, monkeypatch):
    """Both do everything below; without a C++ compiler there is one."""
    if request.param == "torch":
        monkeypatch.setattr(passes, "native_for", lambda source, *tensors: None)


@pytest.mark.parametrize("block", [512, 192])
def test_packing_by_hand(block):
    blocks = torch.tensor([1.0, -2.0, 3.0, -4.0]).repeat(3, block // 4)
    blocks[1, 12:] = 7.0
    packed = pack(blocks, torch.tensor([[block], [12.0], [0.0]]))
    assert packed[0].tolist() == [0b01010101] * (block // 8) + list(torch.tensor([2.5]).view(torch.uint8))
    assert packed[1, 0] == 0b01010101
    assert packed[1, block // 8 :].view(torch.float32).item() == 2.5
    assert not packed[2].any()
    lost = [-1.5, 0.5, 0.5, -1.5]
    assert blocks[0].tolist() == lost * (block // 4)
    assert blocks[1].tolist() == lost * 3 + [0.0] * (block - 12)
    assert blocks[2].tolist() == [1.0, -2.0, 3.0, -4.0] * (block // 4)


@pytest.mark.parametrize("block", [512, 192])
def test_what_arrives_and_what_is_lost_is_what_was_sent(block):
    values = torch.randn(3, 40, block, generator=torch.Generator().manual_seed(1))
    values[:, 7, 100:] = 0
    values[:, 9] = 0
    values[0, 0, :2] = torch.tensor([0.0, -0.0])
    used = torch.full((40, 1), float(block))
    used[7] = 100
    lost, onto = values.clone(), torch.randn(40, block)
    packed = torch.stack([pack(each, used) for each in lost])
    arrived = onto.clone()
    unpack(packed, arrived)
    mean = (values - lost).double().mean(0)
    scales = values.double().abs().sum(2) / used.squeeze(1)
    expected = torch.where(values >= 0, 1.0, -1.0) * scales.unsqueeze(2)
    torch.testing.assert_close((arrived - onto)[:, :100].double(), expected.mean(0)[:, :100], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(mean[:, :100], expected.mean(0)[:, :100], rtol=1e-5, atol=1e-5)
    assert not lost[:, 7, 100:].any()


def test_a_step_over_a_variance_that_stays():
    generator = torch.Generator().manual_seed(2)
    weight, momentum = (torch.randn(33, 5, generator=generator) for _ in range(2))
    variance = torch.rand(33, 5, generator=generator)
    x, m, v = weight.double(), momentum.double(), variance.double()
    move(weight, momentum, variance, kept=0.9, rate=0.3, root=2.0, eps=1e-3)
    torch.testing.assert_close(weight.double(), 0.9 * x - 0.3 * m / (v.sqrt() * 2 + 1e-3), rtol=1e-5, atol=1e-6)


def test_the_kernels_that_were_chosen_pack_and_unpack():
    """Whether there is a compiler or none; those of other ops are nothing to it."""
    ran = []

    def watched(op):
        def kernel(*arguments):
            ran.append(op)
            return getattr(passes, op.removeprefix("onebit_"))(*arguments)

        return kernel

    kernels = {op: watched(op) for op in ("onebit_compress", "onebit_decompress", "onebit_other")}
    values = torch.randn(3, 160, generator=torch.Generator().manual_seed(3))
    values[1, 100:] = 0
    used = torch.tensor([[160.0], [100.0], [0.0]])
    own, theirs = values.clone(), values.clone()
    packed, expected = pack(own, used, kernels), pack(theirs, used)
    assert ran == ["onebit_compress", "onebit_decompress"]
    torch.testing.assert_close(own, theirs)
    arrived, wanted = torch.ones(3, 160), torch.ones(3, 160)
    unpack(packed[None], arrived, kernels)
    assert ran[2:] == ["onebit_decompress"]
    unpack(expected[None], wanted)
    torch.testing.assert_close(arrived, wanted)

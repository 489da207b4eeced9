"""Of blocks to signs and a size, and back."""

import pytest
import torch
from neox_onebit.passes import compress, decompress, pack, unpack
from neox_triton.onebit import COMPRESS, DECOMPRESS, onebit_compress, onebit_decompress


def test_equal_the_references() -> None:
    ((values, filled),) = COMPRESS.examples(torch.float32, torch.device("cpu"), large=False)
    values[0, :3] = torch.tensor([0.0, -0.0, -1e-30])
    packed, theirs = onebit_compress(values, filled), compress(values, filled)
    assert torch.equal(packed[:, :64], theirs[:, :64])
    scales, own = (each[:, 64:].contiguous().view(torch.float32) for each in (packed, theirs))
    assert torch.allclose(scales, own, rtol=1e-6)
    assert torch.equal(onebit_decompress(theirs), decompress(theirs))


@pytest.mark.parametrize("width", [32, 192])
def test_by_hand(width: int) -> None:
    values = torch.tensor([[1.0, -2.0, 3.0, -4.0] * (width // 4)] * 2)
    packed = onebit_compress(values, torch.tensor([[float(width)]] * 2))
    for row in packed:
        assert row[:-4].tolist() == [0b01010101] * (width // 8)
    assert onebit_decompress(packed).tolist() == [[2.5, -2.5, 2.5, -2.5] * (width // 4)] * 2
    assert onebit_compress(torch.zeros(1, 32), torch.zeros(1, 1))[0].tolist() == [255] * 4 + [0] * 4


def test_what_is_sent_and_what_is_lost_by_them() -> None:
    ((values, used),) = COMPRESS.examples(torch.float32, torch.device("cpu"), large=False)
    found = []
    for kernels in ({}, {"onebit_compress": COMPRESS, "onebit_decompress": DECOMPRESS}):
        lost, arrived = values.clone(), torch.ones_like(values)
        packed = pack(lost, used, kernels)
        unpack(torch.stack((packed, packed.flip(0))), arrived, kernels)
        found.append((packed, lost, arrived))
    for theirs, own in zip(*found, strict=True):
        assert torch.allclose(theirs.float(), own.float(), rtol=1e-6, atol=1e-6)


def test_more_blocks_than_one_program_has(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.randn(7, 64, generator=torch.Generator().manual_seed(1)).mul(8).round() / 8
    used = torch.full((7, 1), 64.0)
    for elements in (1, 128, 4096):
        monkeypatch.setattr("neox_triton.onebit.BLOCK_ELEMENTS", elements)
        packed = onebit_compress(values, used)
        assert torch.equal(packed, compress(values, used))
        assert torch.equal(onebit_decompress(packed), decompress(packed))

"""The peak that MFU is measured against."""

import time

import pytest
import torch
from neox_plain import peak
from neox_plain.peak import find_peak, measure_matmul
from torch.nn.functional import linear

from neox_core.contracts.engine import Peak
from neox_core.plan.runfile import PrecisionPlan


def test_the_peak_says_where_it_comes_from():
    class Precision:
        dtype, autocast = "fp32", "bf16"

    given = Peak.given(1.5)
    assert given.flops == 1.5e12
    assert "peak-tflops" in given.source
    measured = find_peak(Precision, torch.device("cpu"), linear)
    assert "bf16" in measured.source
    if measured.flops is None:  # so busy is this machine
        return
    # a lower bound from a product of another size, timed here; the best of many cannot be far below one of them
    left = torch.ones(256, 256, dtype=torch.bfloat16)
    began = time.perf_counter()
    for _ in range(10):
        left @ left
    rate = 10 * 2 * 256**3 / (time.perf_counter() - began)
    assert measured.flops > 0.1 * rate


def test_a_peak_that_varies_is_not_shown_as_one(monkeypatch):
    def found(*rates):
        monkeypatch.setattr(peak, "measure_matmul", lambda dtype, product: [rate * 1e12 for rate in rates])
        return find_peak(PrecisionPlan("fp32", None), torch.device("cpu"), linear)

    steady, busy = found(0.95, 1.0, 0.9), found(0.05, 1.0, 0.9)
    assert (steady.flops, busy.flops) == (1e12, None)
    assert str(busy).startswith("mfu is left out: the machine is busy, a fp32 matmul")
    assert "from 0.05 to 1 TFLOP/s; set peak-tflops" in str(busy)
    assert (steady.mfu(0.5e12), busy.mfu(0.5e12)) == (0.5, None)


def test_each_look_at_the_peak_is_a_rate_of_its_own():
    rates = measure_matmul(torch.float32, linear, size=64, looks=3)
    assert len(rates) == 3
    assert len(set(rates)) > 1


@pytest.mark.parametrize(
    ("took_ms", "looks"), [((1.0, 1.01, 1.0), 3), ((1.1, 1.0, 1.0), 6), ((1.0, 1.1, 1.0), 6), ((1.0, 1.0, 1.1), 6)]
)
def test_a_steady_machine_is_looked_at_thrice_and_a_busy_one_twice_as_often(took_ms, looks, monkeypatch):
    times = iter((*took_ms, 1.0, 1.0, 1.0))
    monkeypatch.setattr(peak, "_quickest", lambda *_: next(times) / 1000)
    assert len(measure_matmul(torch.float32, linear, size=8)) == looks


@pytest.mark.parametrize(
    ("name", "tflops"),
    [("NVIDIA H100 80GB HBM3", 989), ("NVIDIA H100 PCIe", 756), ("NVIDIA L4", 121), ("NVIDIA L40", None)],
)
def test_the_peak_of_a_gpu_is_that_of_its_whole_name(name, tflops, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    found = find_peak(PrecisionPlan("bf16", None), torch.device("cuda"), linear)
    assert found.flops == (None if tflops is None else tflops * 1e12)

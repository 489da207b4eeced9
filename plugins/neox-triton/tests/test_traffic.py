"""What the kernels move, by hand: the model is of the starts that are recorded."""

import os

import pytest
import torch
from neox_kernels.api import traffic_of
from neox_triton.adam_step import KERNEL as ADAM
from neox_triton.examples import LARGE
from neox_triton.rms_norm import KERNEL as RMS_NORM

pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="nothing is started")
META = torch.device("meta")


def test_a_norm() -> None:
    found = traffic_of(RMS_NORM, next(iter(RMS_NORM.examples(torch.bfloat16, META, large=True))))
    rows, width = LARGE.batch * LARGE.seq, LARGE.width
    activations, weight, partial = 2 * rows * width, 2 * width, 4 * 512 * width
    assert found.by_name["rms_norm.forward"] == 2 * activations + weight
    assert found.by_name["rms_norm.backward"] == 3 * activations + weight + partial
    assert found.by_name["sum"] == partial + 4 * width
    assert found.least == 5 * activations + 2 * weight
    assert found.share > 0.85


def test_a_step() -> None:
    found = traffic_of(ADAM, next(iter(ADAM.examples(torch.float32, META, large=True))))
    assert found.by_name == {"adam_step.step": 7 * 4 * 4 * LARGE.width**2}  # three read and written, one read
    assert found.share == 1.0

import pytest
import torch
from neox_triton.adam_step import adam_step
from neox_triton.launch import recording


@pytest.mark.parametrize("decoupled", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(5, 123), (1,), (2100,)])
def test_equals_torch(shape: tuple[int, ...], dtype: torch.dtype, decoupled: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    mine = torch.randn(shape, generator=generator).to(dtype)
    theirs = mine.double().requires_grad_()
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    optimizer = kind([theirs], lr=0.02, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, foreach=False)
    mean, square = torch.zeros(shape), torch.zeros(shape)
    for step in range(1, 4 if dtype == torch.float32 else 2):  # a rounded weight goes its own way
        grad = torch.randn(shape, generator=generator).to(dtype)
        theirs.grad = grad.double()
        optimizer.step()
        adam_step(mine, grad, mean, square, step, 0.02, (0.9, 0.95), 1e-8, 0.1, decoupled)
    rtol = 1e-5 if dtype == torch.float32 else 2**-7  # the interpreter cuts a bf16 off, where a GPU rounds
    assert torch.allclose(mine.double(), theirs, rtol=rtol, atol=1e-5)
    if dtype == torch.float32:
        assert torch.allclose(square.double(), optimizer.state[theirs]["exp_avg_sq"], rtol=1e-5)


def test_a_beta_near_one_keeps_its_digits() -> None:
    """A GPU gets fp32, where 1 - 0.99999 is off by 1e-3; the interpreter computes with more digits."""
    with recording() as launches:
        adam_step(*(torch.empty(8, device="meta") for _ in range(4)), 1, 0.02, (0.9, 0.99999), 1e-8, 0.0, True)
    (launch,) = launches
    numbers = [each for each in launch.arguments if isinstance(each, float)]
    assert any(each == pytest.approx(1e-5, rel=1e-9) for each in numbers)

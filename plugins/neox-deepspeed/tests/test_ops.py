"""DeepSpeed's compiled Adam. On a machine that has not compiled it this takes a minute, which is why it goes first."""

import pytest
import torch
from neox_deepspeed import ops


def test_cpu_adam_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_JOBS", "1")  # compilers at once: other tests run beside it
    generator = torch.Generator().manual_seed(1)
    first = torch.randn(33, 7, generator=generator)
    mine, theirs = (torch.nn.Parameter(first.clone()) for _ in range(2))
    options = {"lr": 0.01, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.1}
    optimizers = ops.cpu_adam([{"params": [mine]}], **options), torch.optim.AdamW([theirs], **options)
    for _ in range(5):
        mine.grad = torch.randn(33, 7, generator=generator)
        theirs.grad = mine.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)

"""The checks of norms and activations pass a sound component and name the clause that a faulty one breaks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

Check = Callable[[str, Any], None]


class Norm(nn.Module):
    no_weight_decay = frozenset({"weight"})

    def __init__(self, dim: int, settings: None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * self.weight).to(x.dtype)


class UndeclaredNorm(Norm):
    no_weight_decay = frozenset({"weight", "bias"})


class NormOverSequence(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(0, -2)).transpose(0, -2) * x.mean() if x.dim() > 1 else super().forward(x)


class NarrowNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[..., 1:]


class HalfNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight).to(x.dtype)


class WideningNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).to(torch.promote_types(x.dtype, torch.float32))


class NoisyNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + 1e-12 * torch.rand(()).to(x.dtype)) + 1e-9 * torch.rand(()).to(x.dtype)


class OverwritingNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        x.data.copy_(out.detach())
        return out


class ZeroDividingNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True)) * self.weight).to(x.dtype)


class DetachedNorm(Norm):
    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = torch.rsqrt(wide.detach().square().mean(-1, keepdim=True) + 1e-6)
        return (wide * scale * self.weight).to(x.dtype)


def test_sound_norm_passes(check: Check) -> None:
    check("norm", Norm)


class SilentNorm(nn.Module):
    no_weight_decay: frozenset[str] = frozenset()

    def __init__(self, dim: int, settings: None) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> None:
        return None


@pytest.mark.parametrize(
    ("mutant", "clause"),
    [
        (UndeclaredNorm, "own parameters"),
        (SilentNorm, "a norm gives a tensor, not None"),
        (NormOverSequence, "last dimension only"),
        (NarrowNorm, r"\[..., dim\] -> \[..., dim\]"),
        (HalfNorm, "statistics in fp32|finite"),
        (WideningNorm, "same dtype"),
        (NoisyNorm, "same bits|last dimension only"),
        (OverwritingNorm, "leaves its input"),
        (ZeroDividingNorm, "zeros give finite"),
        (DetachedNorm, "gradient"),
    ],
)
def test_faulty_norm_is_caught(check: Check, mutant: type, clause: str) -> None:
    with pytest.raises(AssertionError, match=clause):
        check("norm", mutant)


class Activation:
    gated = False

    def __init__(self, settings: None) -> None:
        pass

    def __call__(self, x: Tensor) -> Tensor:
        return F.silu(x)


class Gated(Activation):
    gated = True

    def __call__(self, x: Tensor) -> Tensor:
        value, gate = x.chunk(2, -1)
        return value * F.silu(gate)


class GateFirst(Gated):
    def __call__(self, x: Tensor) -> Tensor:
        gate, value = x.chunk(2, -1)
        return value * F.silu(gate)


class Interleaved(Gated):
    def __call__(self, x: Tensor) -> Tensor:
        return x[..., ::2] * F.silu(x[..., 1::2])


class UndeclaredGate(Gated):
    gated = False


class Mixing(Activation):
    def __call__(self, x: Tensor) -> Tensor:
        return x.softmax(-1)


class InPlace(Activation):
    def __call__(self, x: Tensor) -> Tensor:
        return F.relu(x, inplace=not x.requires_grad)


class Widening(Activation):
    def __call__(self, x: Tensor) -> Tensor:
        return F.silu(x.to(torch.promote_types(x.dtype, torch.float32)))


class Remembering(Activation):
    peak = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        self.peak = max(self.peak, float(x.detach().abs().max()))
        return F.silu(x) / self.peak


class Random(Activation):
    def __call__(self, x: Tensor) -> Tensor:
        return F.silu(x) + 1e-3 * torch.rand(()).to(x.dtype)


class Overflowing(Activation):
    def __call__(self, x: Tensor) -> Tensor:
        return x * (x * x).exp() / (1 + (x * x).exp())


class Trained(nn.PReLU):
    gated = False

    def __init__(self, settings: None) -> None:
        super().__init__()


class Rounded(Activation):
    """Right in float64; in half precision it rounds to 4 bits on the way."""

    def __call__(self, x: Tensor) -> Tensor:
        made = F.silu(x)
        return made if x.dtype != torch.float16 else (made * 8).round() / 8


class NoGradient(Activation):
    def __call__(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x.detach())


def test_sound_activations_pass(check: Check) -> None:
    check("activation", Activation)
    check("activation", Gated)


@pytest.mark.parametrize(
    ("mutant", "clause"),
    [
        (GateFirst, "value is the first half"),
        (Interleaved, "own place"),
        (UndeclaredGate, r"\[..., width\] -> \[..., width\]"),
        (Mixing, "elementwise"),
        (InPlace, "leaves its input"),
        (Widening, "same dtype"),
        (Remembering, "no state"),
        (Random, "same bits"),
        (Overflowing, "finite"),
        (Rounded, "the numbers of float64, rounded: off by .* in torch.float16"),
        (Trained, "no parameters"),
        (NoGradient, "gradient"),
    ],
)
def test_faulty_activation_is_caught(check: Check, mutant: type, clause: str) -> None:
    with pytest.raises(AssertionError, match=clause):
        check("activation", mutant)

"""Each check of neox_gpt.testing passes a sound component and names the clause that a faulty one breaks."""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pluggy
import pytest
import torch
from neox_gpt.testing import check_activation, check_norm, check_position
from torch import Tensor, nn
from torch.nn import functional as F

from neox_core.hooks.catalog import Catalog
from neox_core.hooks.component import Component
from neox_core.hooks.registry import Entry, PluginInfo, Registry

Check = Callable[[str, Any], None]


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Check:
    """`check(kind, target)`: run the check of that kind on a component made of `target`."""

    def run(kind: str, target: Any) -> None:
        module = ModuleType("neox_mutants")
        module.target = target
        monkeypatch.setitem(sys.modules, "neox_mutants", module)
        registry = Registry()
        plugin = PluginInfo("neox-mutants", "0.1.0", "neox_mutants")
        registry.add(Entry(kind, Component("mutant", "neox_mutants:target"), plugin))
        checks = {"norm": check_norm, "activation": check_activation, "position": check_position}
        checks[kind](Catalog(pluggy.PluginManager("neox"), registry, ()), "mutant")

    return run


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
        (Trained, "no parameters"),
        (NoGradient, "gradient"),
    ],
)
def test_faulty_activation_is_caught(check: Check, mutant: type, clause: str) -> None:
    with pytest.raises(AssertionError, match=clause):
        check("activation", mutant)


class Position(nn.Module):
    """Turns pairs of neighbouring dimensions, and adds a ramp to the embedding."""

    no_weight_decay: frozenset[str] = frozenset()

    def __init__(self, shape: Any, settings: None) -> None:
        super().__init__()

    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        return hidden + (positions[..., None] / 100).to(hidden.dtype)

    def prepare(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        angles = positions.double()[..., None] / torch.arange(1, 9)
        return torch.polar(torch.ones_like(angles), angles)

    def rotate(self, query: Tensor, key: Tensor, prepared: Tensor) -> tuple[Tensor, Tensor]:
        if prepared.dim() == 3:
            prepared = prepared[:, None]
        return self.turn(query, prepared), self.turn(key, prepared)

    def score_bias(self, prepared: Tensor) -> Any:
        return lambda head, query, key: -(0.5**head) * (query - key)

    def turn(self, x: Tensor, by: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * by).flatten(-2).to(x.dtype)


class NoRotate(Position):
    rotate = None  # type: ignore[assignment]  # the fault


class Raising(Position):
    def prepare(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        return positions.no_such_method()  # type: ignore[attr-defined,no-any-return]  # the fault


class AllHeads(Position):
    """Looks at the number of heads, of which a rank may have a share."""

    def rotate(self, query: Tensor, key: Tensor, prepared: Tensor) -> tuple[Tensor, Tensor]:
        if not query.shape[1] == key.shape[1] == 4:
            raise TypeError("4 heads are turned")
        return super().rotate(query, key, prepared)


class OneDocument(Position):
    """Turns a token by how far it is from the first of the sample."""

    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        run = positions[..., :1] + torch.arange(hidden.shape[1])
        return super().embed(hidden, run)


class OnlyQuery(Position):
    def rotate(self, query: Tensor, key: Tensor, prepared: Tensor) -> Tensor:  # type: ignore[override]  # the fault
        return super().rotate(query, key, prepared)[0]


class EmbedsByOrder(Position):
    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        return hidden + (torch.arange(hidden.shape[1])[:, None] / 100).to(hidden.dtype)


class TurnsByOrder(Position):
    def prepare(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        return super().prepare(torch.arange(positions.shape[-1]), dtype)


class FirstSampleOnly(Position):
    def prepare(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        return super().prepare(positions[0] if positions.dim() == 2 else positions, dtype)


class Absolute(Position):
    def rotate(self, query: Tensor, key: Tensor, prepared: Tensor) -> tuple[Tensor, Tensor]:
        return self.turn(query, prepared[:, None] if prepared.dim() == 3 else prepared), key


class InPlaceTurn(Position):
    def turn(self, x: Tensor, by: Tensor) -> Tensor:
        turned = super().turn(x, by)
        x.data.copy_(turned.detach())
        return turned


class InPlaceEmbed(Position):
    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        hidden.data += (positions[..., None] / 100).to(hidden.dtype)
        return hidden


class WideTurn(Position):
    def turn(self, x: Tensor, by: Tensor) -> Tensor:
        return super().turn(x.double(), by)


class WideEmbed(Position):
    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        return hidden + positions[..., None].double() / 100


class ShortTurn(Position):
    def turn(self, x: Tensor, by: Tensor) -> Tensor:
        return super().turn(x, by)[..., :8]


class JitteredEmbed(Position):
    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        return super().embed(hidden, positions) + torch.rand(()).to(hidden.dtype)


class DetachedTurn(Position):
    def turn(self, x: Tensor, by: Tensor) -> Tensor:
        return super().turn(x.detach(), by) + 0 * x


class BiasByPlace(Position):
    def score_bias(self, prepared: Tensor) -> Any:
        return lambda head, query, key: 0.5**head * query


class BiasOfRowsOnly(Position):
    def score_bias(self, prepared: Tensor) -> Any:
        return lambda head, query, key: 0.1 * (query - query.reshape(-1)[0] + 0 * key + 0 * head)


class BiasOfAllHeads(Position):
    def score_bias(self, prepared: Tensor) -> Any:
        return lambda head, query, key: torch.ones(7, 1, 1) * (query - key)


class EndlessBias(Position):
    def score_bias(self, prepared: Tensor) -> Any:
        return lambda head, query, key: (query - key + 0 * head).double().log()


class UndeclaredPosition(Position):
    no_weight_decay = frozenset({"weight"})


def test_sound_position_passes(check: Check) -> None:
    check("position", Position)


@pytest.mark.parametrize(
    ("mutant", "clause"),
    [
        (NoRotate, "a position has the methods embed, prepare, rotate, score_bias; it has no rotate"),
        (
            Raising,
            r"it raises AttributeError: 'Tensor' object has no attribute 'no_such_method' \(.*check_layers, line",
        ),
        (AllHeads, "it raises TypeError: 4 heads are turned"),
        (OneDocument, "positions may begin again at 0 within a sample"),
        (OnlyQuery, "`rotate` gives a query and a key"),
        (EmbedsByOrder, "says where a token is"),
        (TurnsByOrder, "says where a token is"),
        (FirstSampleOnly, "each sample has its own"),
        (Absolute, "tells distance"),
        (InPlaceTurn, "leaves its inputs"),
        (InPlaceEmbed, "leaves its input"),
        (WideTurn, "keeps dtypes"),
        (WideEmbed, "same dtype"),
        (ShortTurn, "keeps shapes"),
        (JitteredEmbed, "same bits"),
        (DetachedTurn, "gradient"),
        (BiasByPlace, "`score_bias` tells distance"),
        (BiasOfRowsOnly, "one score alone"),
        (BiasOfAllHeads, "broadcasts with its arguments"),
        (EndlessBias, "`score_bias` is finite"),
        (UndeclaredPosition, "own parameters"),
    ],
)
def test_faulty_position_is_caught(check: Check, mutant: type, clause: str) -> None:
    with pytest.raises(AssertionError, match=clause):
        check("position", mutant)

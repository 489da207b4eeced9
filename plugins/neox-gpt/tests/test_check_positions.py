"""The check of positions passes a sound one and names the clause that a faulty one breaks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

Check = Callable[[str, Any], None]


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


class OtherNames(Position):
    """The model names no argument."""

    def embed(self, x: Tensor, at: Tensor) -> Tensor:
        return super().embed(x, at)


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


@pytest.mark.parametrize("sound", [Position, OtherNames])
def test_sound_position_passes(sound: Any, check: Check) -> None:
    check("position", sound)


@pytest.mark.parametrize(
    ("mutant", "clause"),
    [
        (NoRotate, "a position has the methods embed, prepare, rotate, score_bias; it has no rotate"),
        (
            Raising,
            r"it raises AttributeError: 'Tensor' object has no attribute 'no_such_method' \(.*check_positions, line",
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

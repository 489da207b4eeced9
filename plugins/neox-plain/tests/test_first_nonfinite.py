"""Which part of a model is named as the first whose result is not finite."""

import torch
from neox_plain.first_nonfinite import looking
from torch import Tensor, nn

X = torch.ones(2, 3)


class Sub(nn.Module):
    """Two layers, with a function between them that no module is."""

    def __init__(self, between: float = 1.0) -> None:
        super().__init__()
        self.up, self.down, self.between = nn.Linear(3, 4), nn.Linear(4, 3), between

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x) * self.between)


class Whole(nn.Module):
    def __init__(self, **parts: float) -> None:
        super().__init__()
        self.first, self.last, self.after = Sub(), Sub(**parts), 1.0

    def owner_of(self, name: str) -> str:
        return f"kind neox-{name}" if name.startswith("last") else ""

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x)) * self.after


def found(model: nn.Module) -> list[str]:
    with looking(model) as said:
        model(X)
    assert all(not each._forward_hooks and not each._forward_pre_hooks for each in model.modules())
    return [words for _, words in said]


def test_finite_numbers_name_nobody() -> None:
    assert found(Whole()) == []


def test_the_innermost_part_is_named_with_its_owner_and_only_the_first() -> None:
    model = Whole()
    with torch.no_grad():
        model.first.down.bias.fill_(100.0)
        model.last.up.weight.fill_(torch.finfo(torch.float32).max)
    assert found(model) == ["last.up (kind neox-last.up) gives"]


def test_weights_that_are_not_finite_are_said_to_be_the_cause() -> None:
    model = Whole()
    with torch.no_grad():
        model.first.down.bias[1] = torch.nan
    assert found(model) == ["first.down gives, whose weights are not finite"]


def test_a_function_between_two_modules_is_what_is_around_it() -> None:
    assert found(Whole(between=float("inf"))) == ["last (kind neox-last) gives to last.down"]


def test_a_compiled_module_is_looked_into() -> None:
    model = Whole(between=float("inf"))
    model.last.compile(backend="eager")
    model(X)
    assert found(model) == ["last (kind neox-last) gives to last.down"]

"""What parts of a model give is looked at when they are built: a fault names the plugin, and nothing trains on it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import evolve
from neox_author.testing.plans import example_plan
from neox_gpt.model_inputs import load_parts
from neox_gpt.testing import example_decoder
from torch import nn

from neox_core.errors import PluginError
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.runfile import ComponentRef
from neox_core.run.optimizer import build_optimizer

CONTEXT = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1)


class Norm(nn.Module):
    def __init__(self, dim: int, settings: object) -> None:
        super().__init__()

    def forward(self, x: Any) -> Any:
        return x


class Position(nn.Module):
    def __init__(self, shape: object, settings: object) -> None:
        super().__init__()

    def embed(self, hidden: Any, positions: Any) -> Any:
        torch.rand(3)
        return hidden

    def prepare(self, positions: Any, dtype: torch.dtype) -> Any:
        return None

    def rotate(self, query: Any, key: Any, prepared: Any) -> Any:
        return query, key

    def score_bias(self, prepared: Any) -> Any:
        return lambda head, query, key: (key - query).float()


class Activation:
    gated = True

    def __init__(self, settings: object) -> None: ...

    def __call__(self, x: Any) -> Any:
        return x.chunk(2, -1)[0]


MADE = SimpleNamespace()


def build(**others: Any) -> None:
    vars(MADE).update({"norm": Norm, "activation": Activation, "position": Position, **others})
    parts = {kind: ComponentRef(kind, "odd", "neox-odd", "1.0", f"{__name__}:MADE.{kind}") for kind in vars(MADE)}
    load_parts(evolve(example_decoder(), **parts), 16, CONTEXT, None)


def test_parts_that_keep_their_contracts_are_taken_and_no_random_number_is_drawn() -> None:
    before = torch.get_rng_state()
    build()
    assert torch.equal(torch.get_rng_state(), before)


def test_numbers_are_looked_at_where_there_are_some() -> None:
    """A fake GPU has none, so that its models are built for their shapes and dtypes alone."""
    from neox_gpt.check_parts import _has_numbers
    from torch._subclasses.fake_tensor import FakeTensorMode

    assert _has_numbers(torch.zeros(2))
    assert not _has_numbers(torch.zeros(2, device="meta"))
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert not _has_numbers(torch.zeros(2, device="cuda"))


def changed(base: type, **methods: Any) -> type:
    return type("Odd", (base,), methods)


@pytest.mark.parametrize(
    ("kind", "part", "said"),
    [
        ("norm", changed(Norm, forward=lambda self, x: x.sum(-1)), "of float32 [1, 2, 8] it gives float32 [1, 2], not"),
        ("norm", changed(Norm, forward=lambda self, x: x.double()), "gives float64 [1, 2, 8], not float32 [1, 2, 8]"),
        ("norm", changed(Norm, forward=lambda self, x: x.add_(1)), "changes its input: its contract says"),
        ("norm", changed(Norm, forward=lambda self, x: x * torch.rand(())), "draws from torch's own generator"),
        ("norm", lambda *args: None, "makes None, not a torch.nn.Module"),
        ("activation", changed(Activation, __call__=lambda self, x: x.chunk(2, -1)[0] / 0), "that are not finite"),
        ("activation", changed(Activation, gated=False), "of float32 [1, 2, 8] it gives float32 [1, 2, 4], not"),
        ("activation", changed(Activation, gated=None), "a truth value `gated`"),
        ("activation", lambda *args: None, "makes None"),
        (
            "position",
            changed(Position, rotate=lambda self, q, k, p: q),
            "rotate gives float32 [1, 1, 2, 8], not a query",
        ),
        (
            "position",
            changed(Position, rotate=lambda self, q, k, p: (q, k[..., 1:])),
            "gives float32 [1, 1, 2, 7], not",
        ),
        ("position", changed(Position, embed=lambda self, hidden, p: None), "from embed it gives None, not"),
        ("position", changed(Position, prepare=None), "has no method prepare"),
        ("position", changed(Position, score_bias=lambda self, p: 3), "score_bias gives a int, neither a function"),
        (
            "position",
            changed(Position, score_bias=lambda self, p: lambda h, q, k: q),
            "does not broadcast to [1, 2, 2]",
        ),
        ("position", changed(Position, embed=lambda self, hidden, p: {}["key"]), "failed: KeyError: 'key'"),
    ],
)
def test_a_part_that_breaks_its_contract_is_named(kind: str, part: Any, said: str) -> None:
    with pytest.raises(PluginError) as caught:
        build(**{kind: part})
    assert caught.value.message.startswith(f"{kind} neox-odd:odd 1.0")
    assert said in caught.value.message
    assert "tell the author of neox-odd" in caught.value.hint


class Steps(torch.optim.Optimizer):
    """Steps by the gradient, and keeps `MADE.state` of the parameter's."""

    def __init__(self, params: Any, settings: object) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self) -> None:  # type: ignore[override]  # torch takes a closure
        for group in self.param_groups:
            for weight in group["params"]:
                self.state[weight]["kept"] = MADE.state(weight)
        torch.rand(3)


@pytest.mark.parametrize(
    ("state", "whole", "said"),
    [
        (torch.zeros_like, False, ""),
        (lambda weight: torch.zeros(()), False, ""),
        (lambda weight: 3, False, ""),
        (lambda weight: weight.sum(1, keepdim=True) if weight.ndim == 2 else weight, True, ""),
        (lambda weight: weight.sum(0, keepdim=True), False, r"its state 'kept' .* is float32 \[1, 6\] after a step"),
        (lambda weight: weight.flatten()[:2], True, r"its state 'kept' .* is float32 \[2\] after a step"),
        (lambda weight: [weight], False, "its state 'kept' of a parameter .* is a list after a step"),
        (lambda weight: {}["key"], False, "failed: KeyError: 'key'"),
        (lambda weight: weight.data.div_(0).new_zeros(()), False, "gives weights that are not finite"),
    ],
)
def test_state_that_no_checkpoint_could_hold_is_named_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch, state: Any, whole: bool, said: str
) -> None:
    monkeypatch.setattr(MADE, "state", state, raising=False)
    reference = ComponentRef("optimizer", "steps", "neox-steps", "1.0", f"{__name__}:Steps")
    plan = evolve(example_plan(Path()).optim, optimizer=reference, whole_parameters=whole)
    model: Any = nn.Linear(2, 3)
    model.no_weight_decay = set
    before = torch.random.get_rng_state()
    if said:
        with pytest.raises(PluginError, match=f"optimizer neox-steps:steps 1.0.*{said}"):
            build_optimizer(plan, model)
    else:
        build_optimizer(plan, model)
    assert torch.equal(torch.random.get_rng_state(), before)

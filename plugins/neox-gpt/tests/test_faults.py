"""Parts that keep their contract when a model is built and break it in a later step: errors name part and clause."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import evolve
from neox_gpt.build import build_model
from neox_gpt.config.plan import GPTPlan, MixerFacts
from neox_gpt.gpt import GPT
from torch import nn

from neox_core.errors import PluginError
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.runfile import ComponentRef, RecomputePlan

CONTEXT = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1)
NOW = SimpleNamespace(change=lambda x: x)
"""What the odd parts make of their results in this step."""


class Norm(nn.Module):
    def __init__(self, dim: int, settings: object) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Any) -> Any:
        return NOW.change(nn.functional.rms_norm(x, self.weight.shape, self.weight))


class FeedForward(nn.Module):
    def __init__(self, shape: Any, activation: Any, tensor: Any, settings: object) -> None:
        super().__init__()
        self.up, self.flops_per_token = nn.Linear(shape.hidden_size, shape.hidden_size), 1

    def forward(self, x: Any) -> Any:
        return NOW.change(self.up(x))


class WithNumbers(FeedForward):
    auxiliary_losses = ("balance",)

    def forward(self, x: Any) -> Any:
        return NOW.change((self.up(x), {"balance": x.float().mean()}))


class Mixer(nn.Module):
    def __init__(self, shape: Any, tensor: Any, settings: object) -> None:
        super().__init__()
        self.up = nn.Linear(shape.hidden_size, shape.hidden_size)

    def forward(self, x: Any, position: Any, scope: Any, layer: int) -> Any:
        return NOW.change(self.up(x))


class Activation:
    gated = False

    def __init__(self, settings: object) -> None: ...

    def __call__(self, x: Any) -> Any:
        return NOW.change(x.sigmoid())


class Rotates(nn.Module):
    """A position; `Embeds` is one with other methods that go wrong."""

    def __init__(self, shape: object, settings: object) -> None:
        super().__init__()

    def embed(self, hidden: Any, positions: Any) -> Any:
        return hidden

    def prepare(self, positions: Any, dtype: torch.dtype) -> Any:
        return None

    def rotate(self, query: Any, key: Any, prepared: Any) -> Any:
        return NOW.change(query), key

    def score_bias(self, prepared: Any) -> Any:
        return None


class Embeds(Rotates):
    def embed(self, hidden: Any, positions: Any) -> Any:
        return NOW.change(hidden + 1)

    def rotate(self, query: Any, key: Any, prepared: Any) -> Any:
        return query, key


def raises(x: Any) -> Any:
    raise KeyError("state")


ODD = {
    "norm": Norm, "mixer": Mixer, "feed forward": FeedForward, "numbers": WithNumbers, "activation": Activation,
    "rotate": Rotates, "embed": Embeds,
}  # fmt: skip
KINDS = {"numbers": "feed forward", "rotate": "position", "embed": "position"}
ALIKE = "its contract says that result and input have one shape and dtype"


def planned(plan: GPTPlan, part: str) -> GPTPlan:
    kind = KINDS.get(part, part)
    reference = ComponentRef(kind, "odd", "neox-odd", "1.0", f"{__name__}:{ODD[part].__name__}")
    if kind == "mixer":
        return evolve(plan, mixers=(reference,), mixer_facts=(MixerFacts(1, decodes=False, needs_positions=True),))
    if kind == "feed forward":
        return evolve(plan, feed_forwards=(reference,))
    changed: dict[str, Any] = {kind: reference}
    return evolve(plan, **changed)


@pytest.fixture
def build(plan: GPTPlan, monkeypatch: pytest.MonkeyPatch) -> Any:
    def built(part: str, change: Any, **changes: Any) -> GPT:
        monkeypatch.setattr(NOW, "change", lambda x: x)
        model = build_model(evolve(planned(plan, part), **changes), 96, CONTEXT)
        step(model)
        monkeypatch.setattr(NOW, "change", change)
        return model

    return built


def step(model: GPT) -> None:
    tokens = torch.arange(16).view(2, 8)
    model.loss(tokens, tokens).backward()


@pytest.mark.parametrize("part", ["norm", "mixer", "feed forward", "embed", "rotate", "activation"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x.double(), f": {ALIKE}"),
        (lambda x: x[:, :1], f": {ALIKE}"),  # a block would repeat it
        (lambda x: x[..., 1:], f": {ALIKE}"),
        (lambda x: None, "gives None, not float32"),
    ],
    ids=["dtype", "repeated", "narrower", "none"],
)
def test_a_result_of_another_form_is_the_fault_of_its_part(part: str, change: Any, said: str, build: Any) -> None:
    if part == "rotate" and said.endswith(ALIKE) and change(torch.zeros(1, 2, 2)).shape == (1, 1, 2):
        pytest.skip("heads are cut here, which attention repeats")
    model = build(part, change)
    with pytest.raises(PluginError) as caught:
        step(model)
    assert caught.value.message.startswith(f"{KINDS.get(part, part)} neox-odd:odd 1.0: ")
    assert said in caught.value.message
    assert "tell the author of neox-odd" in caught.value.hint


def test_a_result_that_is_right_without_a_kernel_is_the_fault_of_the_kernel(build: Any) -> None:
    """As of one that is right for the widths of its examples alone."""

    class Narrower:
        def __call__(self, x: Any) -> Any:
            return x[..., 1:]

    class Computed(Activation):
        kernels: Any = {}  # noqa: RUF012  of one object, below

        def __call__(self, x: Any) -> Any:
            return self.kernels.get("sigmoid", torch.sigmoid)(x)

    model = build("activation", lambda x: x)
    for module in model.modules():
        if isinstance(getattr(module, "activation", None), Activation):
            module.activation = Computed(None)
            module.activation.kernels = {"sigmoid": Narrower()}
    with pytest.raises(PluginError, match=r"a kernel of sigmoid in \w+: of float32 .* it gives") as caught:
        step(model)
    assert caught.value.hint == "tell its author; kernels: {sigmoid: reference} computes without it"


@pytest.mark.parametrize("part", ["norm", "mixer", "feed forward", "embed", "rotate", "activation"])
def test_what_a_part_raises_is_its_fault(part: str, build: Any) -> None:
    model = build(part, raises)
    with pytest.raises(PluginError, match=r"neox-odd:odd 1.0.*failed.*KeyError: 'state' \(.*test_faults, line"):
        step(model)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda made: made[0], "gives balance besides its tensor, as its attributes say, and not Tensor"),
        (lambda made: (made[0], {}), "gives balance besides its tensor, as its attributes say, and not "),
        (lambda made: (made[0][:, :1], made[1]), ALIKE),
    ],
)
def test_the_numbers_of_a_feed_forward_are_its_fault(change: Any, said: str, build: Any) -> None:
    model = build("numbers", change)
    with pytest.raises(PluginError) as caught:
        step(model)
    assert caught.value.message.startswith("feed forward neox-odd:odd 1.0: ")
    assert said in caught.value.message


@pytest.mark.parametrize("attribute", ["auxiliary_losses", "auxiliary_metrics"])
def test_a_feed_forward_has_a_thousand_numbers_at_most(attribute: str, plan: GPTPlan, monkeypatch: Any) -> None:
    monkeypatch.setattr(FeedForward, attribute, tuple(map(str, range(1001))), raising=False)
    said = f"^feed forward neox-odd:odd 1.0: its {attribute} are 1,001 numbers: a component gives 1,000 at most"
    with pytest.raises(PluginError, match=said):
        build_model(planned(plan, "feed forward"), 96, CONTEXT)


def test_activations_that_are_computed_again_are_looked_at_too(build: Any) -> None:
    calls = iter(range(100))
    model = build("mixer", lambda x: x.double() if next(calls) >= 2 else x, recompute=RecomputePlan(1))
    with pytest.raises(PluginError, match=f"mixer neox-odd:odd 1.0: .*{ALIKE}"):
        step(model)


def test_memory_that_runs_out_is_nobodys_fault(build: Any) -> None:
    def full(x: Any) -> Any:
        raise RuntimeError("CUDA out of memory. Tried to allocate 1 GiB")

    model = build("mixer", full)
    with pytest.raises(RuntimeError, match="CUDA out of memory"):
        step(model)


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ({"up.weight": (64, 63), "up.bias": (64,)}, "tells up.weight [64, 63], and its module has it as [64, 64]"),
        ({"up.weight": (64, 64)}, "does not tell up.bias, and its module has it as [64]"),
        ({"up.weight": (64, 64), "up.bias": (64,), "z": (1,)}, "tells z [1], and its module has no such parameter"),
    ],
)
@pytest.mark.parametrize("part", ["mixer", "feed forward"])
def test_a_planner_that_tells_other_parameters_is_refused(part: str, shapes: Any, said: str, plan: GPTPlan) -> None:
    wrong = planned(plan, part)
    if wrong.mixer_facts:
        wrong = evolve(wrong, mixer_facts=(evolve(wrong.mixer_facts[0], shapes=shapes),))
    else:
        wrong = evolve(wrong, feed_forward_shapes=(shapes,))
    with pytest.raises(PluginError) as caught:
        build_model(wrong, 96, CONTEXT)
    assert caught.value.message.startswith(f"{part} neox-odd:odd 1.0: its planner {said}: its contract")


def test_a_planner_that_tells_the_same_is_taken_with_norms_left_to_it(plan: GPTPlan) -> None:
    facts = MixerFacts(1, decodes=False, needs_positions=True, shapes={}, norms=("up",))
    right = {"up.weight": (64, 64), "up.bias": (64,)}
    build_model(evolve(planned(plan, "feed forward"), feed_forward_shapes=(right,)), 96, CONTEXT)
    build_model(evolve(planned(plan, "mixer"), mixer_facts=(facts,)), 96, CONTEXT)

"""Factors of single parameters against what one step of SGD is by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from neox_author.testing.outputs import WholeLogits
from neox_author.testing.plans import example_plan
from neox_plain.config.sections.gradients import GradientsSection
from neox_plain.engine import Engine, build_engine
from torch import Tensor, nn

from neox_core.errors import ConfigError
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.runfile import ComponentRef

CAUSAL_LM = ComponentRef("objective", "causal-lm", "neox-causal-lm", "0.1.0", "neox_causal_lm.objective:CausalLM")
LR = 0.1


class Tiny(nn.Module):
    draws, documents, sparse_weights = False, None, ()

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embed, self.out = nn.Embedding(16, 8), nn.Linear(8, 16)

    def forward(self, compute: Callable[[Any], Tensor], *, routing: None = None) -> Tensor:
        return compute(lambda tokens: WholeLogits(self.out(self.embed(tokens))))


def engine_of(clipping: float = 0.0, **factors: Any) -> Engine:
    plan = example_plan(Path("unused"), ranks=(1,))
    plan = evolve(plan, objective=CAUSAL_LM, optim=evolve(plan.optim, gradient_clipping=clipping), engine=factors)
    model = Tiny()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    context = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1)
    return build_engine(plan, model, optimizer, context)


def moved(engine: Engine) -> dict[str, Tensor]:
    """By how much a step moves each parameter, per learning rate."""
    tokens = torch.randint(16, (2, 9), generator=torch.Generator().manual_seed(0))
    before = {name: each.detach().clone() for name, each in engine.model.named_parameters()}
    engine.train_step(iter([tokens]), LR)
    return {name: (before[name] - each.detach()) / LR for name, each in engine.model.named_parameters()}


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)


def test_a_parameter_has_a_learning_rate_of_its_own() -> None:
    plain = moved(engine_of())
    found = moved(engine_of(lr_scales=[["out.b*", 3.0], ["out.*", 0.5], ["embed.*", 0.0]]))
    close(found["out.bias"], 3 * plain["out.bias"])  # the first that names it
    close(found["out.weight"], 0.5 * plain["out.weight"])
    assert not found["embed.weight"].any()


def test_gradients_are_multiplied_before_they_are_clipped() -> None:
    plain, engine = moved(engine_of()), engine_of(gradient_scale=4.0)
    for name, wanted in plain.items():
        close(moved(engine_of(gradient_scale=4.0))[name], 4 * wanted)
    moved(engine)
    norm = torch.cat([each.flatten() for each in plain.values()]).norm()
    assert engine.grad_norm() == pytest.approx(4 * float(norm), rel=1e-5)


def test_the_norm_counts_parameters_as_often_as_asked() -> None:
    plain = moved(engine_of())
    engine = engine_of(clipping=0.1, gradient_norm_counts=[["embed.weight", 0.0], ["out.bias", 2.0]])
    found = moved(engine)
    norm = (plain["out.weight"].square().sum() + 2 * plain["out.bias"].square().sum()).sqrt()
    assert engine.grad_norm() == pytest.approx(float(norm), rel=1e-5)
    for name, wanted in plain.items():
        close(found[name], wanted * 0.1 / norm)


@pytest.mark.parametrize("key", ["lr_scales", "gradient_norm_counts"])
def test_a_pattern_that_names_nothing_is_an_error(key: str) -> None:
    with pytest.raises(ConfigError, match=key.replace("_", "-")):
        engine_of(**{key: [["layers.9.*", 2.0]]})


@pytest.mark.parametrize("factor", [-1.0, float("inf"), float("nan"), 1e7])
def test_a_factor_out_of_bounds_is_refused_with_its_name(factor: float) -> None:
    with pytest.raises(ValueError, match=rf"from 0 to 1,000,000, not 'out\.\*' and {factor}"):
        GradientsSection(lr_scales=(("embed.*", 0.0), ("out.*", factor)))
    with pytest.raises(ValueError, match="1000000"):
        GradientsSection(gradient_scale=factor)

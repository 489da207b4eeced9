"""`compile: auto`: the callback times both ways, and the run continues in the faster one."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attrs import evolve
from neox_author.testing import check_callback, load_only
from neox_gpt.block import Block
from neox_gpt.build import build_model
from neox_gpt.config.sections.model import TIMED_INTERVALS
from neox_gpt.gpt import GPT
from neox_gpt.measure_compile import MeasureCompile
from neox_gpt.testing import example_decoder
from torch import Tensor

from neox_core.hooks.loader import load_plugins
from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.plan.runfile import ComponentRef


def part(kind: str, target: str, settings_class: str | None = None) -> ComponentRef:
    return ComponentRef(kind, "any", "neox-any", "0.1.0", target, settings_class)


PLAN = evolve(
    example_decoder(),
    num_layers=2,
    hidden_size=16,
    num_attention_heads=2,
    intermediate_size=32,
    seq_length=16,
    max_position_embeddings=16,
    norm=part("norm", "neox_norms.rmsnorm:RMSNorm", "neox_norms.settings:RMSNormSettings"),
    activation=part("activation", "neox_activations.gelu:Gelu"),
    position=part("position", "neox_positions.rotary:Rotary", "neox_positions.settings:RotarySettings"),
)
CONTEXT = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1)
TOKENS = torch.randint(64, (2, 17), generator=torch.Generator().manual_seed(1))


class Graphs:
    """A backend of torch.compile that runs what dynamo traced, and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, graph: Any, inputs: Sequence[Tensor]) -> Any:
        def run(*arguments: Any) -> Any:
            self.calls += 1
            return graph.forward(*arguments)

        return run


@pytest.fixture
def graphs() -> Graphs:
    torch._dynamo.reset()
    return Graphs()


def made(graphs: Any) -> tuple[MeasureCompile, GPT]:
    model = build_model(evolve(PLAN, compile="auto"), 64, CONTEXT, backend=graphs)
    nothing: Any = None
    engine: Any = SimpleNamespace(model=model)
    return MeasureCompile(nothing, CONTEXT, None, engine, backend=graphs), model


def trained(measure: MeasureCompile, model: GPT, graphs: Graphs, times: Sequence[float]) -> tuple[list[bool], Any]:
    """Whether each step was compiled, and what was measured after it. times: of each step, which is a log interval."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled, told = [], []
    for step, time in enumerate(times, 1):
        before = graphs.calls
        optimizer.zero_grad()
        model.loss(TOKENS[:, :-1], TOKENS[:, 1:]).backward()
        optimizer.step()
        compiled.append(graphs.calls > before)
        told.append(measure.measured(step))
        measure.log(step, {"step_s": time}, ())
    return compiled, told


def test_contract() -> None:
    check_callback(load_plugins(), "measure_compile")


def test_listing_is_light() -> None:
    assert load_only("neox-gpt").find("callback", "measure_compile")


@pytest.mark.parametrize(
    ("compiled_s", "chosen"), [(0.9, True), (0.97, True), (0.99, False), (1.0, False), (2.0, False)]
)
def test_the_rest_of_the_run_is_what_was_faster(
    graphs: Graphs, compiled_s: float, chosen: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first interval of each way counts for nothing, and one of the others may be off."""
    measure, model = made(graphs)
    measure.start(0)
    plain = [9.0, 1.0, 0.1, 1.0]
    timed = [0.01, compiled_s, 9.0, compiled_s]
    assert len(plain) == 1 + TIMED_INTERVALS
    compiled, told = trained(measure, model, graphs, [*plain, *timed, 1.0, 1.0])
    assert compiled == [False] * 4 + [True] * 4 + [chosen] * 2
    assert told == [{}] * 8 + [{"plain_step_s": 1.0, "compiled_step_s": compiled_s}, {}]
    assert measure.state() == {"compiled": chosen}
    said = capsys.readouterr().out
    assert "steps are compiled from 5 on" in said
    assert f"compiled {compiled_s:.3g} s: the run continues {'compiled' if chosen else 'uncompiled'}" in said


@pytest.mark.parametrize("chosen", [False, True])
def test_a_resumed_run_keeps_the_choice(graphs: Graphs, chosen: bool, capsys: pytest.CaptureFixture[str]) -> None:
    measure, model = made(graphs)
    measure.restore({"compiled": chosen})
    measure.start(20)
    other = [2.0] * 4 + [1.0 if not chosen else 3.0] * 4
    said = f"compile: auto: the run continues {'compiled' if chosen else 'uncompiled'}, as was chosen before"
    assert said in capsys.readouterr().out
    assert trained(measure, model, graphs, other)[0] == [chosen] * 8
    assert measure.state() == {"compiled": chosen}


def test_a_rewind_to_before_the_choice_keeps_it(graphs: Graphs) -> None:
    measure, model = made(graphs)
    measure.start(0)
    trained(measure, model, graphs, [1.0] * 4 + [0.5] * 4)
    measure.restore({"compiled": False})
    assert measure.state() == {"compiled": True}


def test_no_choice_is_kept_before_there_is_one(graphs: Graphs) -> None:
    measure, model = made(graphs)
    measure.start(0)
    trained(measure, model, graphs, [1.0] * 7)
    assert measure.state() is None


def test_a_model_that_was_compiled_for_a_while_computes_what_a_plain_one_does(graphs: Graphs) -> None:
    """Bit for bit from the same weights, when it is not compiled any more."""
    measure, model = made(graphs)
    measure.start(0)
    trained(measure, model, graphs, [1.0] * 4 + [2.0] * 4)
    plain = build_model(PLAN, 64, CONTEXT, weights=dict(model.named_parameters()))
    before = graphs.calls
    losses = [each.loss(TOKENS[:, :-1], TOKENS[:, 1:]) for each in (model, plain)]
    assert graphs.calls == before
    assert losses[0].equal(losses[1])


def test_every_layer_and_the_loss_are_compiled(graphs: Graphs) -> None:
    measure, model = made(graphs)
    assert model.compiled_loss is not None
    assert model.compiled_loss.function is None
    measure.restore({"compiled": True})
    measure.start(1)
    blocks = [each for each in model.modules() if isinstance(each, Block)]
    assert len(blocks) == len(model.layers)
    assert all(each._compiled_call_impl is not None for each in blocks)
    assert model.compiled_loss.function is not None

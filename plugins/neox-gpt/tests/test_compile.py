"""Compiled layers compute what plain ones do."""

from typing import Any

import pytest
import torch
from attrs import evolve
from neox_gpt.build import build_model
from neox_gpt.gpt import GPT
from neox_gpt.testing import example_decoder
from torch import Tensor, nn

from neox_core.parallel.context import BuildContext
from neox_core.parallel.groups import Groups
from neox_core.parallel.sample_keys import sample_keys
from neox_core.parallel.tensor import TensorParallel
from neox_core.plan.runfile import ComponentRef, RecomputePlan


def part(kind: str, target: str, settings_class: str | None = None) -> ComponentRef:
    return ComponentRef(kind, "any", "neox-any", "0.1.0", target, settings_class)


PLAN = evolve(
    example_decoder(),
    num_layers=4,
    hidden_size=32,
    num_attention_heads=4,
    intermediate_size=64,
    seq_length=16,
    max_position_embeddings=32,
    hidden_dropout=0.2,
    attention_dropout=0.2,
    norm=part("norm", "neox_norms.rmsnorm:RMSNorm", "neox_norms.settings:RMSNormSettings"),
    activation=part("activation", "neox_activations.gated:SwiGLU"),
    position=part("position", "neox_positions.rotary:Rotary", "neox_positions.settings:RotarySettings"),
)


def made(*, compiled: bool = False) -> GPT:
    plan = evolve(PLAN, compile=compiled, recompute=RecomputePlan(layers=1) if compiled else PLAN.recompute)
    return build_model(plan, 64, BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1))


def losses(model: GPT, tokens: Tensor) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    found = []
    for step in range(4):
        loss = model.loss(tokens[:, :-1], tokens[:, 1:], sample_keys(1, 2 * step, 2, "cpu"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def test_the_same_losses_from_two_graphs() -> None:
    """Whatever the number of layers: the one for a layer of any number, and the loss's. With another one for the first
    layer, a recomputation of it would not fit.
    """
    torch._dynamo.reset()
    tokens = torch.randint(64, (2, 17), generator=torch.Generator().manual_seed(1))
    plain, compiled = made(), made(compiled=True)
    expected = losses(plain, tokens)
    torch._dynamo.utils.counters.clear()
    assert losses(compiled, tokens) == pytest.approx(expected, abs=1e-5)
    assert expected[-1] < expected[0] - 0.1
    assert 1 <= torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2
    assert not torch._dynamo.utils.counters["graph_break"]

    ran: list[nn.Module] = []
    compiled.layers[0].register_forward_hook(lambda *_: ran.append(compiled))
    with torch.no_grad():  # a generation is left uncompiled: its keys grow with every token
        cache = compiled.eval().new_cache(32)
        for length in range(3):
            compiled.logits(tokens[:1, length : length + 1], cache)
    assert not ran
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2


def test_windows_norms_and_caps_compile() -> None:
    """By dynamo alone, without a compiler behind it: two kinds of layers in turn."""
    torch._dynamo.reset()
    tokens = torch.randint(64, (2, 17), generator=torch.Generator().manual_seed(1))
    shaped = {
        "windows": (5, None) * 2,
        "positions_of_layer": (True, False) * 2,
        "qk_norm": "head",
        "norm_place": "both",
    }
    plan = evolve(PLAN, **shaped, attention_softcap=5.0, logit_softcap=9.0, embedding_multiplier=3.0)
    context = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1)
    plain = build_model(plan, 64, context)
    compiled = build_model(evolve(plan, compile=True), 64, context, backend="eager")
    assert losses(compiled, tokens) == pytest.approx(losses(plain, tokens), abs=1e-5)


@pytest.mark.parametrize(("order", "layers"), [((0, None, 0), 0), ((None, 0, None, 0), 2)])
def test_layers_with_a_layout_compile(order: tuple[int | None, ...], layers: int) -> None:
    """Also where they are recomputed: by the graph that ran first, not by that of a layer of the other kind."""
    torch._dynamo.reset()
    tokens = torch.randint(64, (2, 17), generator=torch.Generator().manual_seed(1))
    fixed = ("neox_sparse_attention.fixed:fixed", "neox_sparse_attention.settings:FixedSettings")
    layouts = (evolve(part("sparse layout", *fixed), settings={"block": 2}),)
    recompute = RecomputePlan(layers=layers) if layers else PLAN.recompute
    plan = evolve(PLAN, num_layers=len(order), layouts=layouts, layout_of_layer=order, recompute=recompute)
    context = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1), seed=1)
    compiled = build_model(evolve(plan, compile=True), 64, context, backend="aot_eager")
    assert losses(compiled, tokens) == pytest.approx(losses(build_model(plan, 64, context), tokens), abs=1e-5)


@pytest.mark.parametrize(
    "shaped",
    [
        {"mlp_bias": False},
        {"attention_bias": False, "mlp_bias": False},
        {"norm_place": "both", "mlp_bias": False, "qk_norm": "head"},
        {"hidden_dropout": 0.1, "parallel_residual": True, "attention_bias": False},
    ],
)
def test_every_pass_of_a_tensor_parallel_rank_runs_the_same_graphs(shaped: dict[str, Any]) -> None:
    """torch runs code uncompiled once it has found nothing to compile in it. A sum of biases that is compiled in the
    first pass alone has other last digits there: a resumed run would end on other bits.
    """
    torch._dynamo.reset()
    ran: list[int] = []

    def backend(graph: Any, _: Any) -> Any:
        def run(*inputs: Tensor) -> Any:
            ran[-1] += 1
            return graph(*inputs)

        return run

    rank = TensorParallel(None, 0, 2, exchange=lambda x, _: 2 * x)
    context = BuildContext(torch.device("cpu"), torch.float32, Groups(None, None, 0, 1, rank), seed=1)
    plan = evolve(PLAN, **{"num_layers": 2, "hidden_dropout": 0.0, "attention_dropout": 0.0} | shaped)
    model = build_model(plan, 64, context)
    for layer in model.layers:
        layer.compile(backend=backend)
    tokens = torch.arange(32).view(2, 16)
    for _ in range(3):
        ran.append(0)
        model.loss(tokens, tokens, sample_keys(1, 0, 2, "cpu"))
    assert ran[0] == ran[1] == ran[2] > 0

"""The check of an architecture: the tiny one of `neox plugins new` passes, and each planted fault is named."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from neox_author.testing import architectures, check_architecture, load_only
from neox_author.testing.clauses import heard
from neox_author.testing.resolved import KIT, completed
from neox_author.testing.templates.architecture import component, plan
from torch import Tensor, nn
from torch.nn import functional

from neox_core.hooks.catalog import Catalog

TINY = f"{KIT.id}:kit"
PATCHES = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return completed(load_only("neox-author"))


def test_every_clause_is_tried(catalog: Catalog) -> None:
    told: dict[str, str] = {}
    with heard(told.setdefault):
        check_architecture(catalog, TINY)
    for clause in ("PP 2 equals one process", "TP 2 equals one process", "TP 2 x PP 2 equals one process"):
        assert told[clause] == ""
    assert "does not split positions" in told["TP 2 with sequence parallelism equals one process"]
    assert any(each.startswith("sample() continues as passes over the whole text do") for each in told)


Block = component.Block
PASS = Block.forward


def block(change: Callable[[Any, Tensor], Tensor]) -> Callable[[PATCHES], None]:
    return lambda patch: patch.setattr(Block, "forward", change)


def without(step: str) -> Callable[[PATCHES], None]:
    """A block whose ranks do not meet before or after its linear layers."""

    def forward(self: Any, x: Tensor) -> Tensor:
        tensor = self.tensor

        class Half:
            enter = staticmethod((lambda y: y) if step == "enter" else tensor.enter)
            leave = staticmethod((lambda y: y) if step == "leave" else tensor.leave)

        self.tensor = Half
        try:
            return PASS(self, x)
        finally:
            self.tensor = tensor

    return block(forward)


def noncausal(self: Any, x: Tensor) -> Tensor:
    return PASS(self, x) + x.roll(-1, 1) * 0.1


def of_the_batch(self: Any, x: Tensor) -> Tensor:
    return PASS(self, x) + x.mean(0, keepdim=True)


def cut_off(self: Any, x: Tensor) -> Tensor:
    return PASS(self, x) + 0.5 * x.detach()


def waits(self: Any, x: Tensor) -> Tensor:
    return PASS(self, x) * (1.0 if x.amax().item() < 1e9 else 0.0)


def drops(self: Any, x: Tensor) -> Tensor:
    return functional.dropout(PASS(self, x), 0.1)


def drawn_by_torch(patch: PATCHES) -> None:
    def draw(seed: int, module: nn.Module) -> None:
        for parameter in module.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0, 0.02)

    patch.setattr(component, "draw", draw)


def first_slice(patch: PATCHES) -> None:
    """Every rank takes the first part of a split weight."""
    draw = component.draw

    def wrong(seed: int, module: nn.Module) -> None:
        for each in module.modules():
            if isinstance(each, Block):
                each.cuts = {name: component.Cut(cut.dim, cut.sections, 0, cut.size) for name, cut in each.cuts.items()}
        draw(seed, module)
        for each in module.modules():
            if isinstance(each, Block):
                inner = each.up.shape[0] * each.tensor.size
                each.cuts = {"up": each.tensor.cut(0, (inner,)), "down": each.tensor.cut(1, (inner,))}

    patch.setattr(component, "draw", wrong)


def narrow_loss(patch: PATCHES) -> None:
    patch.setattr(component.Outputs, "_wide", lambda self: self.all)


def row_alone_differs(patch: PATCHES) -> None:
    """What the whole model computes twice, a stage computes once."""
    outputs = component.Model.outputs

    def twice(self: Any, tokens: Tensor) -> Any:
        return component.Outputs(outputs(self, tokens).all * 2)

    patch.setattr(component.Model, "outputs", twice)


def forgets_a_weight(patch: PATCHES) -> None:
    shapes = plan.Plan.shapes

    def fewer(self: Any, rows: int, ranks: int = 1) -> Any:
        return {name: shape for name, shape in shapes(self, rows, ranks).items() if name != "head.weight"}

    patch.setattr(plan.Plan, "shapes", fewer)


def fullest_is_whole(patch: PATCHES) -> None:
    patch.setattr(plan.Planner, "on_fullest_rank", lambda self, run, size: size.shapes)


def samples_late(patch: PATCHES) -> None:
    """It continues from all tokens but the last."""
    outputs = component.Model.outputs
    sample = component.Architecture.sample

    def late(self: Any, model: Any, tokenizer: Any, prompt: str) -> str:
        patch.setattr(component.Model, "outputs", lambda made, tokens: outputs(made, tokens[:, :-1]))
        text: str = sample(self, model, tokenizer, prompt)
        patch.setattr(component.Model, "outputs", outputs)
        return text

    patch.setattr(component.Architecture, "sample", late)


def takes_no_weights(patch: PATCHES) -> None:
    build = component.Architecture.build
    patch.setattr(
        component.Architecture,
        "build",
        lambda self, rows, context, weights=None, **more: build(self, rows, context, **more),
    )


def always_fp32(patch: PATCHES) -> None:
    build = component.Architecture.build
    patch.setattr(component.Architecture, "build", lambda *args, **more: build(*args, **more).to(torch.float32))


FAULTS: dict[str, tuple[Callable[[PATCHES], None], str]] = {
    "an all-reduce is missing in the forward pass": (without("leave"), "^TP 2 equals one process: the loss differs"),
    "an all-reduce is missing in the backward pass": (
        without("enter"),
        "^TP 2 equals one process: the gradient of .* diff",
    ),
    "each rank draws the first slice": (first_slice, r"^TP 2 equals one process: first weights: layers.0.\w+ differs"),
    "a token sees the one after it": (
        block(noncausal),
        r"^a change at one position alters no result .* position \[2\]",
    ),
    "a sample sees its neighbours": (block(of_the_batch), "^a sample does not depend on the others in its micro-batch"),
    "a gradient is cut off": (block(cut_off), "^the gradient is that of the function.*: embedding.weight differs"),
    "a pass waits for the device": (block(waits), "^it does not wait for the device, as item does"),
    "dropout from torch's generator": (block(drops), "^two passes give the same bits: the result differs"),
    "weights from torch's generator": (drawn_by_torch, "^first weights follow from .seed, name."),
    "a loss in half precision": (narrow_loss, "^the loss is in fp32 or wider"),
    "the row is another model": (row_alone_differs, "^PP 2 equals one process: the loss differs"),
    "the planner forgets a weight": (
        forgets_a_weight,
        "^size.. tells the shape of each parameter; not so of .*head.weight",
    ),
    "the planner does not cut": (fullest_is_whole, r"^on_fullest_rank.. tells what the fullest rank holds.* \(PP 2\)"),
    "decoding is late by one": (
        samples_late,
        r"^sample.. continues as passes over the whole text do: token \d+ differs",
    ),
    "given weights are left aside": (takes_no_weights, "^build.. raises CheckpointError for weights of another model"),
    "weights in another dtype": (always_fp32, "^build.. gives weights in the dtype of the context"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(fault: str, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, said = FAULTS[fault]
    plant(monkeypatch)
    monkeypatch.setattr(architectures, "check_light", lambda target: None)  # which starts a process
    with pytest.raises(AssertionError, match=said):
        check_architecture(catalog, TINY)
